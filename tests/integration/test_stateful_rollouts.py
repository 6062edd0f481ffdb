"""Rollouts over real sessions: what a failed cell did to its interpreter is rolled back with the history."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from playing import TASK, Play, call, play_on
from retcon.build import build_limits, build_strategy, open_context
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.purify.saar import Saar
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_group
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits
from retcon.tools.kinds.python import PythonSessions

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/studies"))


DONE = "It is 42."


def lived(*codes: str, attempts: int = 1) -> Play:
    """One rollout of these programs, and then an answer; nothing is left open after it."""

    async def work() -> Play:
        async with SandboxPool(workers=1, limits=Limits(cpu_seconds=1.0)) as pool:
            replies = [*map(call, codes), DONE, DONE]
            played = await play_on(replies, tool=PythonSessions(pool), repair=Saar(attempts=attempts))
            assert pool.open_sessions == 0
            return played

    return asyncio.run(work())


def decisions(p: Play) -> list[str | None]:
    return [t.repair.decision if t.repair else None for t in p.turns]


SEEN = "import os\n'x' in globals(), os.path.exists('out.txt')"


def test_28_what_a_failed_cell_set_and_wrote_is_gone_after_the_repair():
    p = lived("a = 7", "x = 1\nopen('out.txt', 'w').write('a')\nx + y", "y = 2\na + y", SEEN, "y")
    assert decisions(p) == [None, "deep", None, None, None]
    assert p.turns[1].abandoned[0].observations[0].error_type == "NameError"
    assert [t.observations[0].text for t in p.turns[1:4]] == ["9", "(False, False)", "2"]


def test_an_attempt_that_leans_on_the_failed_cell_fails_and_the_failure_has_its_state_again():
    p = lived("x = 1\nopen('out.txt', 'w').write('a')\nx + y", "y = x", "del x", SEEN, "x", attempts=2)
    assert decisions(p) == ["unrepaired", None, None, None]
    assert [a.observations[0].error_type for a in p.turns[0].raw()] == ["NameError"] * 3
    assert [t.observations[0].text for t in p.turns[1:3]] == ["(True, True)", "1"]


def test_a_cell_that_ends_its_interpreter_is_rolled_back_too():
    p = lived("a = 7", "x = 1\nimport os\nos._exit(3)", "a + 1", SEEN)
    assert decisions(p)[1] in ("shallow", "deep")
    assert [t.observations[0].text for t in p.turns[1:3]] == ["8", "(False, False)"]


def test_a_cell_that_ran_out_of_time_is_rolled_back_too():
    p = lived("x = 1\nwhile True: pass", "a = 1", SEEN)
    assert p.turns[0].abandoned[0].observations[0].status == "timeout"
    assert p.turns[1].observations[0].text == "(False, False)"


def test_no_history_is_committed_that_the_interpreter_would_not_have_told():
    p = lived("a = 5; oops", "print(a)", attempts=2)
    assert decisions(p) == ["unrepaired", None]
    assert [t.observations[0].error_type for t in p.turns[:1]] == ["NameError"]
    assert [a.observations[0].error_type for a in p.turns[0].abandoned[:1]] == ["NameError"]


def test_branches_have_the_variables_and_files_of_what_they_left():
    """Parent and branches overwrite the same names, each in its own state."""
    begin, again = "n = 1\nopen('n.txt', 'w').write('1')", "n + int(open('n.txt').read())"
    own = "n = n * 10 + {}\nopen('n.txt', 'w').write(str(n))\nn"

    def replies(id: str, text: str, _: int) -> str:
        told = text.count("<|im_start|>tool")
        return call([begin, own.format(id.rpartition("/")[2]), again][told]) if told < 3 else DONE

    async def work() -> list[list[str]]:
        strategy = ("kind=arpo", "initial=1", "siblings=3", "probability=1", "entropy_weight=0")
        recipe = load_recipe(None, ["rollout.max_tokens=2000", *map("strategy.{}".format, strategy)])
        engine = ScriptedEngine(ByteTokenizer(), replies)
        async with SandboxPool(workers=1, limits=Limits(cpu_seconds=1.0)) as pool:
            context = RolloutContext(
                engine, Chat(ByteTokenizer()), {"python": PythonSessions(pool)}, build_limits(recipe),
                strategy=build_strategy(recipe),
            )  # fmt: skip
            group = await rollout_group(TASK, context, count=4, seed=0, step=1, grade=lambda _, t: t)
            assert pool.open_sessions == 0
        assert [t.branch and t.branch.turns for t in group] == [None, 1, 1, 1]
        return [[o.text for turn in t.turns for o in turn.observations][1:] for t in group]

    assert asyncio.run(work()) == [["10", "20"], ["11", "22"], ["12", "24"], ["13", "26"]]


def test_the_recipe_says_whether_rollouts_have_sessions():
    def observed(*overrides: str) -> list[str]:
        async def work() -> list[str]:
            recipe = load_recipe(None, ["rollout.max_tokens=900", "sandbox.output_chars=200", *overrides])
            engine = ScriptedEngine(ByteTokenizer(), [call("n = 1"), call("n = n + 1\nn"), DONE])
            async with open_context(recipe, engine, Chat(ByteTokenizer())) as context:
                group = await rollout_group(
                    TASK, context, count=3, seed=0, step=1,
                    grade=lambda _, trajectory: replace(trajectory, reward=1.0),
                )  # fmt: skip
            return [t.turns[1].observations[0].text.splitlines()[-1] for t in group]

        return asyncio.run(work())

    assert observed("sandbox.sessions=true") == ["2"] * 3
    assert observed() == ["NameError: name 'n' is not defined"] * 3
