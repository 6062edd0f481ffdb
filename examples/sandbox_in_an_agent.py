"""The sandbox in an agent that you have: programs run with limits, and state that can be gone back to.

python examples/sandbox_in_an_agent.py
"""

from __future__ import annotations

import asyncio

from retcon import SandboxPool


async def main() -> None:
    async with SandboxPool(workers=2) as sandbox:
        print("contained by:", sandbox.tier)

        result = await sandbox.run("import sys\nprint(sum(map(int, sys.stdin)))", stdin="1\n2\n3\n")
        print(result.status, result.stdout.strip(), f"{result.seconds:.2f} s")

        result = await sandbox.run("while True: pass", timeout=1)
        print(result.status)

        # A session keeps variables and files, as a notebook does; a checkpoint is what a failed step goes back to.
        session = await sandbox.session()
        await session.run("numbers = [1, 2, 3]")
        before = await session.checkpoint()
        failed = await session.run("numbers.clear()\nnumbers[0]")
        print(failed.status, failed.error_type)
        await session.rollback(before)
        print((await session.run("numbers")).value)
        await session.close()


asyncio.run(main())
