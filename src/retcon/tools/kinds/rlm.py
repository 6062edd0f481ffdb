"""Recursive language models (arXiv 2512.24601): a long input is a variable of a program that calls the model on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from retcon.core.errors import MissingExtra, RecipeError
from retcon.core.types import Observation, ToolCall, ToolSpec
from retcon.sandbox.types import Limits, Program, Sandbox
from retcon.tools.kinds.python import ObservationFormatter, PythonSession
from retcon.tools.loading import ToolKind, ToolSetup
from retcon.tools.schema import python_spec
from retcon.tools.types import ModelCalls, OpenTool, StatefulTool, TaskTool

RLMS = "rlms==0.1.3"
SHOWN_CHARS = 20_000
"""Most characters of an observation, as in rlms."""
INSTRUCTIONS = f"""\
Answer the question about `context`, a variable of a Python session that may be far too long to read at once. \
Variables are kept between programs; of what a program prints you see {SHOWN_CHARS:,} characters at most. There are:
- `context`: the input, a str or a list.
- `llm_query(prompt)`: a language model's answer to one prompt, a str. It sees the prompt alone, not `context`.
- `llm_query_batched(prompts)`: its answers to a list of prompts, in order, made at the same time.
- `rlm_query(prompt)`, `rlm_query_batched(prompts)`: the same by models with a session of their own, in which the \
prompt is `context`.
- `SHOW_VARS()`: your variables and their types.
- `answer`: a dict. Set `answer["content"]` to the final answer, then `answer["ready"] = True`, which ends your work.
First look at the length and the beginning of `context`. Search by code what code can find; cut the rest into parts, \
ask `llm_query_batched` about all parts in one call, and combine its answers by code."""
"""The system prompt of a question about a long input."""
_START = """\
import json as _json, os as _os
with open("context.json", encoding="utf-8") as _file:
    context = _json.load(_file)
_os.remove("context.json")
class _Answer(dict):
    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value)
        if key == "ready" and value:
            _submit(str(self.get("content", "")))
    def update(self, *args, **kwargs):
        given = dict(*args, **kwargs)
        ready = given.pop("ready", self.get("ready"))
        dict.update(self, given)
        self["ready"] = ready
answer = _Answer(content="", ready=False)
_hidden = {"llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched", "SHOW_VARS", "answer"}
def SHOW_VARS():
    found = {name: type(value).__name__ for name, value in globals().items() if name[0] != "_" and name not in _hidden}
    return f"Available variables: {found}"
"""


_Ask = Callable[[str, Sequence[str]], Awaitable[list[str]]]
_Query = Callable[..., Awaitable[object]]


class RlmKind(ToolKind):
    """`tools = ["rlm"]`."""

    def spec(self, *, sessions: bool) -> ToolSpec:
        return SPEC

    def build(self, setup: ToolSetup) -> TaskTool:
        return Rlm(setup.sandbox, output_chars=setup.output_chars)


SPEC = dataclasses.replace(
    python_spec(keeps_state=True),
    description="Runs a Python program in a session and returns what it prints. Variables are kept between calls. The "
    "session has `context` (the input), `llm_query(prompt)`, `llm_query_batched(prompts)`, `rlm_query(prompt)`, "
    '`rlm_query_batched(prompts)` and `answer`: set answer["content"], then answer["ready"] = True to end.',
)


class Rlm:
    """Implements `TaskTool`: sessions whose programs hold the input and call the model.

    output_chars: most characters of an observation. limits: of each program, the sandbox's own where None.
    """

    def __init__(self, sandbox: Sandbox, *, output_chars: int = SHOWN_CHARS, limits: Limits | None = None) -> None:
        self.name, self.spec = SPEC.name, SPEC
        self._sandbox, self._limits = sandbox, limits
        self._formatter = ObservationFormatter(self.name, min(output_chars, SHOWN_CHARS))

    def of(self, task: str, trajectory: str, model: ModelCalls | None = None) -> StatefulTool:
        if model is None:
            raise RecipeError("rollout.tools: rlm needs Retcon's own rollouts: leave it out here")
        return _Sessions(self._sandbox, self._formatter, self._limits, model)


class _Sessions:
    """Implements `StatefulTool` for one rollout."""

    def __init__(
        self, sandbox: Sandbox, formatter: ObservationFormatter, limits: Limits | None, model: ModelCalls
    ) -> None:
        self.name, self.spec = SPEC.name, SPEC
        self._sandbox, self._formatter, self._limits, self._model = sandbox, formatter, limits, model

    async def open(self, trajectory: str) -> OpenTool:
        functions = _Functions(self._model)
        opening = Program(_START, files={"context.json": msgspec.json.encode(self._model.context)})
        start = partial(self._sandbox.session, limits=self._limits, functions=functions.by_name, opening=opening)
        session = await RlmSession.open(start, self._formatter, trajectory)
        session.functions = functions
        return session


class _Functions:
    """The functions that programs of one session call. call: id of the tool call that runs."""

    def __init__(self, model: ModelCalls) -> None:
        self.call = ""
        self.submitted: str | None = None
        self._model = model
        self.by_name = {
            "llm_query": self._one(model.complete),
            "llm_query_batched": self._all(model.complete),
            "rlm_query": self._one(model.recurse),
            "rlm_query_batched": self._all(model.recurse),
            "_submit": self._submit,
        }

    def _one(self, ask: _Ask) -> _Query:
        async def query(prompt: str, model: str | None = None) -> str:  # noqa: ARG001 - rlms has one
            return (await ask(self.call, [_text(prompt)]))[0]

        return query

    def _all(self, ask: _Ask) -> _Query:
        async def query(prompts: Sequence[str], model: str | None = None) -> list[str]:  # noqa: ARG001
            if isinstance(prompts, str):
                raise TypeError("prompts must be a list of str; it is a str")
            return await ask(self.call, [_text(prompt) for prompt in prompts])

        return query

    async def _submit(self, content: str) -> None:
        self.submitted = content


def _text(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise TypeError(f"a prompt must be a str; it is {msgspec.json.encode(prompt).decode():.80}")
    return prompt


class RlmSession(PythonSession):
    """Implements `OpenTool`: a Python session whose programs call the model and submit the answer."""

    functions: _Functions

    async def __call__(self, call: ToolCall) -> Observation:
        functions = self.functions
        functions.call, functions.submitted = call.id, None
        observation = await super().__call__(call)
        if functions.submitted is None or observation.status != "ok":
            return observation
        return replace(observation, submitted=functions.submitted)


@dataclasses.dataclass(frozen=True, slots=True)
class RlmPrompts:
    """Prompts of a recursive language model. question: makes the user's message of a question and a context."""

    system: str
    question: Callable[[str, object], str]


def find_prompts(name: str) -> RlmPrompts:
    """Return the prompts of a name in `subcalls.prompts`. Raises MissingExtra."""
    return _rlms_prompts() if name == "rlms" else RlmPrompts(INSTRUCTIONS, _describe)


def _describe(question: str, context: object) -> str:
    return f"{question}\n\n{describe_context(context)}"


def _rlms_prompts() -> RlmPrompts:
    """Read the prompts of the package rlms, with its blocks named as those that are calls here."""
    try:
        from rlm.core.types import QueryMetadata
        from rlm.utils.prompts import RLM_SYSTEM_PROMPT, build_rlm_system_prompt
    except ImportError as error:
        raise MissingExtra(f"subcalls.prompts = 'rlms' needs its package: pip install {RLMS} ({error})") from error

    def write(question: str, context: object) -> list[str]:
        messages = build_rlm_system_prompt(RLM_SYSTEM_PROMPT, QueryMetadata(context), root_prompt=question)
        return [message["content"].replace("```repl", "```python") for message in messages]

    return RlmPrompts(write("", "")[0], lambda question, context: write(question, context)[1])


def describe_context(context: object) -> str:
    """Describe the input, at the end of a question about it."""
    if isinstance(context, str):
        return f"`context` is a str of {len(context):,} characters."
    if isinstance(context, Sequence):
        sizes = [len(part) if isinstance(part, str) else len(msgspec.json.encode(part)) for part in context]
        return f"`context` is a list of {len(sizes):,} parts with {sum(sizes):,} characters in all."
    return f"`context` is a {type(context).__name__}."
