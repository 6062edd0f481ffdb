"""Example harness: prompts, runs the model's programs, and shows their output.

How to train through it: recipe.toml. Any OpenAI client would do in place of aiohttp.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from retcon import ModelEndpoint, SandboxPool, Task

PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs a program, and shows what it prints.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
TURNS = 6


class Harness:
    """Harness with one sandbox per event loop, opened by its first rollout. The sandbox ends with the process."""

    def __init__(self) -> None:
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Future[SandboxPool]] = {}

    async def __call__(self, task: Task, endpoint: ModelEndpoint) -> None:
        """What the model says last is its answer, which the task's grader grades."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.question}]
        async with aiohttp.ClientSession() as http:
            for _ in range(TURNS):
                body = {"model": endpoint.name, "messages": messages, "tools": [PYTHON]}
                async with http.post(f"{endpoint.url}/chat/completions", json=body) as answer:
                    answer.raise_for_status()
                    message = (await answer.json())["choices"][0]["message"]
                if not message.get("tool_calls"):
                    return
                messages.append(message)
                for call in message["tool_calls"]:
                    result = await self._called(call["function"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], **result})

    async def _called(self, function: dict[str, str]) -> dict[str, Any]:
        """A call that cannot be run is the model's mistake, to be reported and learnt from: raising here would cost the
        rollout."""
        try:
            code = json.loads(function["arguments"])["code"]
        except (ValueError, LookupError, TypeError):
            code = None
        if function["name"] != "python" or not isinstance(code, str):
            return {"content": "call python with code", "is_error": True}
        return await self._run(code)

    async def _run(self, code: str) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if loop not in self._opening:
            self._opening[loop] = asyncio.ensure_future(SandboxPool(workers=2).__aenter__())
        done = await (await asyncio.shield(self._opening[loop])).run(code)
        lines = (done.stdout or done.stderr).strip().splitlines()
        return {"content": lines[-1][:24] if lines else "", "is_error": done.status != "ok"}


solve = Harness()
