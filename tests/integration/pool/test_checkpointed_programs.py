"""A few random programs with checkpoints and without; benchmarks/studies/checkpoints.py runs a thousand."""

from __future__ import annotations

import sys
from pathlib import Path

from retcon.sandbox.pool import SandboxPool
from sessions import using

sys.path.append(str(Path(__file__).parents[3] / "benchmarks/studies"))

from checkpoints import PARTS, Program, differences, random_program


def test_random_programs_end_with_checkpoints_as_they_do_without() -> None:
    async def work(pool: SandboxPool) -> None:
        for number in range(5):
            program = random_program(1, number)
            found, _ = await differences(pool, program)
            assert found == [], program

    using(work)


def test_a_refused_checkpoint_says_what_stands_in_its_way_and_a_kept_one_is_gone_back_to() -> None:
    async def work(pool: SandboxPool) -> None:
        for part, why in (("pipe", set()), ("thread", {"threads that its code started are running"})):
            cells = tuple(cell.replace("#", "1") for cell in PARTS[part])
            found, refused = await differences(pool, Program((part,), cells, frozenset(range(len(cells)))))
            assert found == []
            assert set(refused) == why

    using(work)


def test_no_garbage_is_collected_while_a_copy_is_made() -> None:
    """It would close descriptors between the look at them and the copy, or before it has made them anew."""
    watch = """
import gc, os, sys
r, w = os.pipe()
seen = []
def note(*_):
    frame = sys._getframe()
    while frame is not None:
        seen.append(frame.f_code.co_name)
        frame = frame.f_back
gc.callbacks.append(note)
gc.set_threshold(1)
"""

    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run(watch)
        state = await session.checkpoint()
        await session.rollback(state)
        result = await session.run("gc.callbacks.clear(); gc.isenabled(), 'serve' in seen, '_open_files' in seen")
        assert result.value == "(True, True, False)"

    using(work)
