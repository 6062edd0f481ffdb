"""Hypothesis strategies for rollouts over the scripted engine, with failures, repairs, cuts and faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import event
from hypothesis import strategies as st

from playing import CALL, Play, play, run_python
from retcon.core.types import Status, Turn
from retcon.purify.saar import Saar
from retcon.rollout.context import RolloutLimits
from retcon.tools.scripted import ScriptedSessions

FINE: dict[str, Status] = {"x = 1": "ok", "x = 1 + 1": "ok", "print('some other program')": "ok"}
FAILING: dict[str, Status] = {
    "x = l": "error", "y": "error", "while True: x = 1": "timeout", "print('some other progam')": "error",
    "x = 'ab' * 10**9": "limit",
}  # fmt: skip
STRANGE: dict[str, Status] = {"pass": "ok", "lost()": "infrastructure"}
OUTCOMES = FINE | FAILING | STRANGE
REASONING = ["", "Hm. ", "Lét me see: ", "I write <tool_call> or ```py, then: "]
MALFORMED = {"markdown": "```python\nx = (", "hermes": '<tool_call>\n{"name": "python", "argu'}
SETTING = ["a = 1", "b = a + 1", "a = 2; oops", "files['a'] = 1; oops", "del a", "a, b = b, a", "files['a'] = 2"]
DONE = "It is 42."

styles: st.SearchStrategy[str] = st.sampled_from(["markdown", "hermes"])


def calls(programs: Iterable[str], style: str = "markdown") -> st.SearchStrategy[str]:
    """A turn with a call of one of the programs, or now and then with two."""
    one = st.builds(CALL[style], st.sampled_from(list(programs)), st.sampled_from(REASONING))
    return st.one_of(one, one, one, st.tuples(one, one).map("\n".join))


def any_reply(style: str = "markdown") -> st.SearchStrategy[str]:
    odd = st.one_of(calls(OUTCOMES, style), st.sampled_from([DONE, MALFORMED[style], "x" * 300, ""]))
    return st.one_of(calls(FAILING, style), calls(FINE, style), calls(FAILING, style), calls(FINE, style), odd)


@dataclass(frozen=True)
class Script:
    """replies: of the first generations; after them the model answers. breaks: the one at which the engine goes."""

    replies: tuple[str, ...]
    breaks: int | None = None

    def __call__(self, request_id: str, text: str, n: int) -> str:
        if n == self.breaks:
            raise ConnectionError("gone")
        return self.replies[n] if n < len(self.replies) else DONE


def scripts(reply: st.SearchStrategy[str]) -> st.SearchStrategy[Script]:
    replies = st.lists(reply, min_size=5, max_size=12).map(tuple)
    return st.builds(Script, replies, st.sampled_from([None] * 12 + [0, 1, 2, 4]))


limits = st.builds(RolloutLimits, st.integers(150, 1200), st.sampled_from([5, 3, 1]), st.sampled_from([600, 100, 0]))
attempts = st.sampled_from([3, 2, 1, 0])
repairs = st.builds(Saar, attempts, st.sampled_from([0.5, 0.0, 1.0]), st.sampled_from(["all", "first", "latest"]))


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """A rollout with a repair, over a tool without state."""
    style = draw(styles)
    script = draw(scripts(any_reply(style)))
    return _told(play(script, OUTCOMES, style=style, repair=draw(repairs), limits=draw(limits), max_tokens=200))


@st.composite
def stateful_plays(draw: st.DrawFn) -> tuple[Play, ScriptedSessions]:
    """A rollout with a repair, over sessions, that ends well."""
    tool = ScriptedSessions(run_python)
    script = Script(draw(scripts(calls(SETTING))).replies)
    return _told(play(script, tool=tool, repair=draw(repairs), limits=RolloutLimits(9000, 5, 9000))), tool


def _told(made: Play) -> Play:
    for turn in made.turns:
        event(turn.repair.decision if turn.repair else "as sampled")
    event(made.trajectory.stop)
    return made


def raw(p: Play) -> list[Turn]:
    """Every turn that was sampled, in order."""
    return [attempt for turn in p.turns for attempt in turn.raw()]
