"""[sandbox]: what holds around the calls of a rollout, in the real sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from keys.acting import Lab, acts, run
from playing import call
from retcon.build import open_context
from retcon.chat.chat import Chat
from retcon.chat.families.hermes import render_call
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Observation, ToolCall, ToolSpec
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.rollout.group import rollout_group
from retcon.sandbox import client
from retcon.tasks.types import Task
from retcon.tools.loading import ToolKind, ToolSetup
from retcon.tools.scripted import ScriptedTool
from servers.answering import Answer, Asked, serving

LONG = ("rollout.max_tokens=4000", "rollout.max_turns=6", "sandbox.output_chars=200")


def observed(recipe: Recipe, *programs: str, style: str = "markdown") -> list[Observation]:
    """What the programs of one rollout give, one turn after another; in other styles, what its replies give."""

    async def rolled() -> list[Observation]:
        tokenizer = ByteTokenizer()
        replies = map(call, programs) if style == "markdown" else programs
        engine = ScriptedEngine(tokenizer, [*replies, "done"])
        async with open_context(recipe, engine, Chat(tokenizer, style=style)) as opened:
            context = replace(opened, sampling=SamplingParams(max_tokens=2000))
            (made,) = await rollout_group(
                Task("t", "go", "1"), context, count=1, seed=0, step=0, grade=lambda _, trajectory: trajectory
            )
        return [o for turn in made.turns for o in turn.observations]

    return run(rolled())


@acts("sandbox.url", ([], "ok"), (["http://127.0.0.1:9"], "no sandbox server answers"), given=LONG)
def where_calls_run(recipe: Recipe, lab: Lab) -> str:
    """Nobody listens on port 9, discard."""
    try:
        return observed(recipe, "print(1)")[0].status
    except SandboxUnavailable as error:
        return str(error).partition(":")[0]


@acts("sandbox.patience", (0, "infrastructure"), (60, "ok"), given=LONG)
def a_call_whose_server_is_started_anew(recipe: Recipe, lab: Lab) -> str:
    """It ends at the call, and was asked twice in vain whether it is there: all tries of the call are over by then."""
    left = [Answer(status=None)] * 3

    def reply(asked: Asked) -> Answer:
        if left and (len(left) < 3 or "print(1)" in asked.body.get("code", "")):
            return left.pop()
        return Answer({"status": "ok", "tier": "landlock"})

    with serving(reply) as server, pytest.MonkeyPatch.context() as patched:
        patched.setattr(client, "FIRST_PAUSE", 0.01)
        section = recipe.sandbox.model_copy(update={"url": (server.url.removesuffix("/v1"),)})
        return observed(recipe.model_copy(update={"sandbox": section}), "print(1)")[0].status


@acts("sandbox.workers", (1, "in turn"), (2, "at once"))
def two_calls_at_a_time(recipe: Recipe, lab: Lab) -> str:
    """The one waits; whether the other can be done meanwhile."""

    async def called() -> str:
        async with open_context(recipe, ScriptedEngine(ByteTokenizer(), []), Chat(ByteTokenizer())) as context:
            tool = context.tools["python"]
            codes = ("import time\ntime.sleep(2)", "print(1)")
            first, second = (asyncio.ensure_future(tool(ToolCall("0", "python", {"code": c}, 0))) for c in codes)
            done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            return "at once" if second in done else "in turn"

    return run(called())


@acts("sandbox.python", ("", "ok"), ("/nowhere/python", "[sandbox] python is '/nowhere/python'"), given=LONG)
def what_runs_calls(recipe: Recipe, lab: Lab) -> str:
    try:
        return observed(recipe, "print(1)")[0].status
    except RecipeError as error:
        return str(error).partition(",")[0]


@acts("sandbox.packages", ([], "False"), (["wave"], "True"), given=LONG)
def what_is_imported_before_a_call(recipe: Recipe, lab: Lab) -> str:
    return observed(recipe, "import sys\nprint('wave' in sys.modules)\nimport wave")[0].text.strip()


@acts("sandbox.sessions", (False, "error"), (True, "ok"), given=LONG)
def a_variable_of_the_call_before(recipe: Recipe, lab: Lab) -> str:
    return observed(recipe, "a = 1", "print(a)")[1].status


@acts("sandbox.reuse", (False, False), (True, True), given=LONG)
def a_program_that_ran_before(recipe: Recipe, lab: Lab) -> bool:
    """Whether it takes no time."""
    return observed(recipe, "print(1)", "print(1)")[1].seconds == 0


@acts("sandbox.cpu_seconds", (1.0, "timeout"), (60.0, "ok"), given=LONG)
def a_call_that_computes_for_two_seconds(recipe: Recipe, lab: Lab) -> str:
    return observed(recipe, "import time\nwhile time.process_time() < 2:\n    pass")[0].status


@acts("sandbox.wall_seconds", (0.1, "timeout"), (60.0, "ok"), given=LONG)
def a_call_that_waits(recipe: Recipe, lab: Lab) -> str:
    return observed(recipe, "import time\ntime.sleep(0.3)")[0].status


@acts("sandbox.memory_mb", (100, "limit"), (400, "ok"), given=LONG)
def a_call_that_takes_200_mib(recipe: Recipe, lab: Lab) -> str:
    return observed(recipe, "len(bytearray(200 << 20))")[0].status


@acts("sandbox.output_chars", (8, 8), (20, 20), given=LONG)
def characters_of_an_observation(recipe: Recipe, lab: Lab) -> int:
    return len(observed(recipe, "print('x' * 500)")[0].text)


class Search:
    """A tool that a recipe names by its import path."""

    name = "search"
    spec = ToolSpec("search", "looks a word up", {"type": "object", "required": ["query"]})

    async def __call__(self, call: ToolCall) -> Observation:
        return Observation(call.id, "found", "ok")


class Echo(ToolKind):
    """A tool that is built as a recipe's own are; it says what it was given."""

    def spec(self, *, sessions: bool) -> ToolSpec:
        return ToolSpec("python")

    def build(self, setup: ToolSetup) -> ScriptedTool:
        return ScriptedTool(lambda code: (code, "ok", None))


@acts(
    "rollout.tools",
    (["python"], ("malformed", "error")),
    (["python", "keys.world:Search"], ("ok", "error")),
    (["keys.world:Echo"], ("malformed", "ok")),
    given=LONG,
)
def which_tools_answer(recipe: Recipe, lab: Lab) -> tuple[str, str]:
    search = observed(recipe, render_call("search", {"query": "pi"}), style="qwen")
    python = observed(recipe, render_call("python", {"code": "print(("}), style="qwen")
    return search[0].status, python[0].status
