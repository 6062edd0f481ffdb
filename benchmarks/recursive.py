#!/usr/bin/env python
"""Recursive language models beside the package rlms: calls of a model by programs. docs/training/recursive.md.

    python -m venv /tmp/rlms && /tmp/rlms/bin/pip install rlms==0.1.3
    python benchmarks/recursive.py --rlms /tmp/rlms/bin/python [--rounds 5] [--calls 64] [--json FILE]

A scripted model stands behind one OpenAI-compatible server, which answers each request after 50 ms. Both sides run the
same three programs in turns, in processes of their own: calls one after another, one batch of calls, and one batch of
children with a session each. Wall time is that of the answer, with the sandbox and the client open. CPU time is the
process's and its children's, less that of the same process without a program; a session is part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = {
    "one after another": "xs = [llm_query(f'part {i:04d}') for i in range(CALLS)]",
    "a batch": "xs = llm_query_batched([f'part {i:04d}' for i in range(CALLS)])",
    "children": "xs = rlm_query_batched([f'CHILD {i:04d}' for i in range(CALLS)])",
}
SUBMIT = "\nanswer['content'] = ','.join(xs)\nanswer['ready'] = True"
CHILD = "answer['content'] = context[-4:]\nanswer['ready'] = True"
SECONDS = 0.05


# --- the server ---


def reply(messages: list[dict[str, Any]]) -> str:
    """What the scripted model says: a program to a root (whose question holds it) or a child, else its prompt's end."""
    text = "\n".join(str(message["content"]) for message in messages)
    if "llm_query_batched" not in str(messages[0]["content"]):
        return "ok " + text[-4:]
    fence = "repl" if "```repl" in text else "python"
    program = re.search(r"<program>(.*?)</program>", text, re.DOTALL)
    return f"```{fence}\n{program[1] if program else CHILD}\n```"


def serve(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    sent = {"requests": 0, "characters": 0}

    async def complete(request: Request) -> JSONResponse:
        messages = (await request.json())["messages"]
        sent["requests"] += 1
        sent["characters"] += sum(len(str(message["content"])) for message in messages)
        await asyncio.sleep(SECONDS)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply(messages)}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice],
                             "usage": usage})  # fmt: skip

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 131072}]})

    async def count(_: Request) -> JSONResponse:
        found = dict(sent)
        sent.update(requests=0, characters=0)
        return JSONResponse(found)

    routes = [
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/v1/models", models),
        Route("/count", count),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="error")


# --- in a process of its own ---


def cpu_seconds() -> float:
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def ours(url: str, question: str | None) -> tuple[float, str]:
    from retcon.build import build_engine_chat, build_policy, open_context
    from retcon.config.load import load_recipe
    from retcon.models.locating import BASE, locate
    from retcon.rollout.loop import run_rollout
    from retcon.tasks.types import Task
    from retcon.tools.kinds.rlm import INSTRUCTIONS

    keys = ["engine.kind=openai", f"engine.url={url}/v1", "engine.calls=fence", 'rollout.tools=["rlm"]',
            "rollout.max_tokens=32768", "sandbox.output_chars=2000", "engine.at_once=64"]  # fmt: skip
    recipe = load_recipe(None, keys)
    chat = build_engine_chat(recipe, locate(BASE))

    async def run() -> tuple[float, str]:
        async with open_context(recipe, build_policy(recipe, locate(BASE), chat), chat) as context:
            started = time.perf_counter()
            if question is None:
                return 0.0, ""
            task = Task("q", question, "", INSTRUCTIONS, {"context": "a long text"})
            made = await run_rollout(task, context, id="q", seed=0)
            return time.perf_counter() - started, str(made.returned)

    return asyncio.run(run())


def theirs(url: str, question: str | None) -> tuple[float, str]:
    from rlm import RLM  # type: ignore[import-not-found]

    backend = {"model_name": "m", "base_url": f"{url}/v1", "api_key": "none"}
    model = RLM(backend="openai", backend_kwargs=backend, environment="local", max_depth=2, verbose=False)
    started = time.perf_counter()
    if question is None:
        return 0.0, ""
    made = model.completion("a long text", root_prompt=question)
    return time.perf_counter() - started, made.response


# --- the comparison ---


@contextmanager
def server(port: int) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            time.sleep(0.1)
            if subprocess.run(["curl", "-s", f"{url}/count"], capture_output=True, check=False).returncode == 0:
                break
        yield url
    finally:
        process.terminate()
        process.wait()


def measure(python: str, side: str, url: str, question: str | None) -> dict[str, Any]:
    command = [python, __file__, "--side", side, "--url", url]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"{side} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rlms", help="a Python that has rlms")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument("--port", type=int, default=8931)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    if given.side:
        seconds, answer = (ours if given.side == "ours" else theirs)(given.url, json.load(sys.stdin))
        print("\n" + json.dumps({"seconds": seconds, "cpu": cpu_seconds(), "answer": answer}))
        return
    compare(given)


def compare(given: argparse.Namespace) -> None:
    sides = {"ours": sys.executable, **({"theirs": given.rlms} if given.rlms else {})}
    found: dict[str, Any] = {}
    with server(given.port) as url:
        for _ in range(given.rounds):
            for side, python in sides.items():
                idle = measure(python, side, url, None)["cpu"]
                for name, program in PROGRAMS.items():
                    code = program.replace("CALLS", str(given.calls)) + SUBMIT
                    made = measure(python, side, url, f"<program>\n{code}\n</program>")
                    sent = json.loads(subprocess.check_output(["curl", "-s", f"{url}/count"]))
                    ends = [f"{i:04d}" for i in range(given.calls)]
                    right = [part.strip()[-4:] for part in made["answer"].split(",")] == ends
                    row = found.setdefault(name, {}).setdefault(side, [])
                    row.append({"wall": made["seconds"], "cpu": made["cpu"] - idle, "right": right, **sent})
    print(f"{'':20}{'':8}{'wall s':>8}{'CPU s':>8}{'requests':>10}{'characters':>12}  right")
    for name, rows in found.items():
        for side, runs in rows.items():
            middle = {
                key: statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "requests", "characters")
            }
            right = sum(run["right"] for run in runs)
            print(f"{name:20}{side:8}{middle['wall']:8.2f}{middle['cpu']:8.2f}{middle['requests']:10.0f}"
                  f"{middle['characters']:12,.0f}  {right}/{len(runs)}")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
