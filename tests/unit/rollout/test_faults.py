"""Why rollouts were lost: what is told, and what is said of it in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from playing import LIMITS, TASK, call, play
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Observation, ToolCall, ToolSpec, Trajectory, history_ids
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.purify.saar import Saar
from retcon.rollout.context import MAX_CHARS, MAX_REASONS, Faults, RolloutContext
from retcon.rollout.loop import run_rollout
from retcon.tools.scripted import ScriptedSession, ScriptedSessions


def test_a_reason_is_told_once_and_without_what_names_the_rollout(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    assert (faults.first, faults.why) == ("", "")
    faults.add("t/0", "rollout t/0: a tool failed")
    for n in range(1, 4):
        faults.add(f"t/{n}", f"request t/{n}: the model\n does not answer")
    told = ["rollout t/0 is lost: a tool failed", "rollout t/1 is lost: the model does not answer"]
    assert [record.getMessage() for record in caplog.records] == told
    assert (faults.first, faults.why) == ("a tool failed", ", most often as the model does not answer")


def test_only_so_many_reasons_are_told_and_counted_and_long_ones_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    for n in range(MAX_REASONS + 2):
        faults.add(f"t/{n}", f"{n}" * 2 * MAX_CHARS)
    for _ in range(3):
        faults.add("t/9", f"{MAX_REASONS}" * MAX_CHARS)
    assert len(caplog.records) == MAX_REASONS
    assert faults.why == f", most often as {'0' * MAX_CHARS}"


def test_a_rollout_whose_tool_fails_on_its_own_account_says_which_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ended = play([call("y")], {"y": ("no worker", "infrastructure", None)}).trajectory
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"rollout {ended.id} is lost: ")
    assert "no worker" in told


def test_a_rollout_that_ends_in_a_lookahead_says_why(caplog: pytest.LogCaptureFixture) -> None:
    ended = play([call("x"), call("y")], {"x": "error", "y": "infrastructure"}, repair=Saar()).trajectory
    assert ended.stop == "infrastructure"
    (told,) = (record.getMessage() for record in caplog.records)
    assert told == f"rollout {ended.id} is lost: a tool failed on its own account in a lookahead"


def test_a_fault_in_the_last_turn_is_no_end_of_the_turns_nor_of_the_room() -> None:
    """It would be graded, and the model blamed for it."""
    told = ("no worker" * 20, "infrastructure", None)
    whole = play([call("x"), call("y")], {"y": told})
    used = len(history_ids(whole.trajectory))
    for limits in (replace(LIMITS, max_turns=2), replace(LIMITS, max_tokens=used - 20)):
        ended = play([call("x"), call("y")], {"y": told}, limits=limits).trajectory
        assert (ended.stop, len(ended.turns), ended.reward) == ("infrastructure", 2, None)


@pytest.mark.parametrize("second", [call("y"), ConnectionError("gone")], ids=["tool", "engine"])
def test_nor_is_one_in_the_lookahead_of_the_last_turn(second: Reply) -> None:
    limits = replace(LIMITS, max_turns=1)
    ended = play([call("x"), second], {"x": "error", "y": "infrastructure"}, repair=Saar(), limits=limits).trajectory
    assert (ended.stop, len(ended.turns), ended.reward) == ("infrastructure", 1, None)


class Given:
    """A tool as a user may write one. gives: what a call does."""

    def __init__(self, gives: Callable[[ToolCall], object]) -> None:
        self.name, self.spec, self._gives = "python", ToolSpec("python"), gives

    async def __call__(self, call: ToolCall) -> Any:
        return self._gives(call)


class Kept(ScriptedSessions):
    """A tool with state that raises at one of its operations. operation: its name."""

    def __init__(self, operation: str) -> None:
        super().__init__(lambda code, _: ("", "error" if code == "x" else "ok", None))
        self.operation = operation

    async def open(self, trajectory: str) -> ScriptedSession:
        opened = ScriptedSession(self, trajectory)

        async def raises(*_: object) -> None:
            raise OSError("no disk")

        if self.operation == "open":
            await raises()
        setattr(opened, self.operation, raises)
        return opened


def raises(error: BaseException) -> Callable[[ToolCall], object]:
    def raised(_: ToolCall) -> object:
        raise error

    return raised


def rolled(tool: Any, *replies: str) -> Trajectory:
    tokenizer = ByteTokenizer()
    engine = ScriptedEngine(tokenizer, [*replies])
    context = RolloutContext(engine, Chat(tokenizer), {"python": tool}, LIMITS, repair=Saar())
    return asyncio.run(run_rollout(TASK, context, id="t/0", seed=0))


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (raises(KeyError("word")), "the tool 'python' raised KeyError: 'word'"),
        (raises(SystemExit(3)), "the tool 'python' raised SystemExit: 3"),
        (lambda call: "text", "returned 'text', where an Observation of the call '0.0.0' belongs"),
        (lambda call: Observation("other", "text", "ok"), "where an Observation of the call '0.0.0' belongs"),
        (lambda call: Observation(call.id, None, "ok"), "whose text is None, where a str belongs"),  # type: ignore[arg-type]
        (lambda call: Observation(call.id, b"x", "ok"), "whose text is b'x', where a str belongs"),  # type: ignore[arg-type]
        (lambda call: Observation(call.id, "x", "fine"), "of status 'fine'; one of ok, error"),  # type: ignore[arg-type]
    ],
)
def test_a_tool_of_ones_own_that_raises_or_gives_no_observation_costs_its_rollout_alone(
    gives: Callable[[ToolCall], object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = rolled(Given(gives), call("x"), "answer")
    assert (made.stop, made.reward, made.raw_failures) == ("infrastructure", None, 0)
    assert said in made.turns[0].observations[0].text
    assert "rollout t/0 is lost: a tool's fault: the tool 'python'" in caplog.text


@pytest.mark.parametrize("operation", ["open", "checkpoint", "rollback", "discard"])
def test_so_does_one_whose_state_is_not_to_be_had(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    made = rolled(Kept(operation), call("x"), call("y"), "answer")
    assert made.stop == "infrastructure"
    assert "the tool 'python' raised OSError: no disk" in caplog.text


def test_one_that_cannot_be_closed_is_gone() -> None:
    assert rolled(Kept("close"), call("y"), "answer").stop == "answer"
