#!/usr/bin/env python
"""The floor of a service without warm workers: one fresh `python3 -c` a call, behind code-judge's `/run`.

Started by benchmarks/service.py. No queue in Redis, no validation, no limits but the time: what is left is the price of
an interpreter a call. On the same server and loop as ours, so that the two differ in how they run the program alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retcon.http.server import listen, url_of


def create_app(workers: int, timeout: float) -> Starlette:
    turns = asyncio.Semaphore(workers)

    async def run(request: Request) -> Response:
        asked = json.loads(await request.body())
        async with turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                asked["solution"],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(timeout):
                    stdout, stderr = await process.communicate()
            except TimeoutError:
                process.kill()
                stdout, stderr = await process.communicate()
        done = process.returncode == 0
        answer = {"success": done, "run_success": done, "stdout": stdout.decode(), "stderr": stderr.decode()}
        return Response(json.dumps(answer), media_type="application/json")

    return Starlette(routes=[Route("/run", run, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    arguments = parser.parse_args()
    opened = listen("127.0.0.1", 0)
    print(f"listening on {url_of(opened)}", flush=True)
    app = create_app(arguments.workers, arguments.timeout)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, log_level="warning")
    asyncio.run(uvicorn.Server(config).serve(sockets=[opened]))


if __name__ == "__main__":
    main()
