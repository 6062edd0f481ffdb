"""Rollouts over the scripted engine, with bytes for ids: what the tests of the loop and of repairs play."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retcon.chat.chat import Chat
from retcon.chat.families import hermes
from retcon.chat.tokenizer import ByteTokenizer
from retcon.chat.types import Tokenizer
from retcon.core.types import Status, Trajectory, Turn
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tasks.types import Task
from retcon.tools.scripted import Answer, ScriptedTool, State
from retcon.tools.types import StatefulTool, Tool

TASK = Task("t", "What is 6 times 7?", "42")
LIMITS = RolloutLimits(max_tokens=4000, max_turns=6, lookahead_tokens=4000)


def call(code: str, reasoning: str = "") -> str:
    """What a model writes that thinks `reasoning` and runs `code`."""
    return f"{reasoning}```python\n{code}\n```"


def hermes_call(code: str, reasoning: str = "", *, name: str = "python") -> str:
    """The same in the style of Hermes and Qwen, to the tool of this name."""
    return reasoning + hermes.render_call(name, {"code": code})


CALL: dict[str, Callable[..., str]] = {"markdown": call, "hermes": hermes_call}


def run_python(code: str, state: State) -> Answer:
    """What a Python session answers, without a sandbox: `state` are its variables, `files` one among them."""
    names = {"__builtins__": {"print": lambda *_: None}, "files": {}} | state
    try:
        tree = ast.parse(code)
        last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(last, "<cell>", "eval"), names) if last else None
        return ("" if value is None else repr(value)), "ok", None
    except (NameError, SyntaxError, KeyError) as error:
        return str(error), "error", type(error).__name__
    finally:
        state |= {name: value for name, value in names.items() if name != "__builtins__" and value != {}}


@dataclass
class Play:
    trajectory: Trajectory
    engine: ScriptedEngine
    tool: ScriptedTool

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.trajectory.turns

    @property
    def texts(self) -> list[str]:
        """What the model wrote in each committed turn, without the end of turn."""
        return [written(turn) for turn in self.turns]

    def prompt(self, n: int) -> str:
        """What the engine was given for its n-th generation."""
        return ByteTokenizer().decode(self.engine.seen[n][1])


def written(turn: Turn) -> str:
    return turn.text.removesuffix("<|im_end|>")


def play(*args: Any, **how: Any) -> Play:
    """One rollout; parameters as `play_on`."""
    return asyncio.run(play_on(*args, **how))


async def play_on(
    replies: Sequence[Reply] | Callable[[str, str, int], str],
    outcomes: Mapping[str, Status | Answer] | None = None,
    *,
    tool: Tool | StatefulTool | None = None,
    beside: Sequence[Tool] = (),
    style: str = "markdown",
    chat: Chat | None = None,
    tokenizer: Tokenizer | None = None,
    repair: Repair | None = None,
    limits: RolloutLimits = LIMITS,
    seed: int = 7,
    max_tokens: int = 2000,
) -> Play:
    """One rollout, in this event loop.

    outcomes: of code, by status or by whole answer; code that is not named is ok. tool: another one than the scripted
    tool that gives them. beside: further tools. tokenizer: bytes where None. chat: in place of both.
    """
    named = outcomes or {}

    def answer(code: str) -> Answer:
        outcome = named.get(code, "ok")
        return (f"<{outcome}>", outcome, None) if isinstance(outcome, str) else outcome

    chat = chat or Chat(tokenizer or ByteTokenizer(), style=style)
    engine, scripted = ScriptedEngine(chat.tokenizer, replies), ScriptedTool(answer)
    sampling = SamplingParams(max_tokens=max_tokens)
    tools = {"python": tool or scripted, **{one.name: one for one in beside}}
    context = RolloutContext(engine, chat, tools, limits, sampling, repair)
    trajectory = await run_rollout(TASK, context, id="t/0/0", seed=seed)
    return Play(trajectory, engine, scripted)
