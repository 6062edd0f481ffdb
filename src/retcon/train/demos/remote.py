"""Demonstrations by a model behind a URL. It reads and writes messages alone: its replies are rendered in the learner's
style, and the output of its programs becomes user messages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retcon.build import build_sampling
from retcon.chat.chat import Chat
from retcon.core.errors import EngineError, InfrastructureFault, RecipeError
from retcon.core.types import Trajectory
from retcon.engine.openai.messages import PRINTED
from retcon.engine.types import Generation, SamplingParams
from retcon.models.remote import RemoteModel, RequestRefused, is_key_missing
from retcon.rollout.lengths import drop_long_prompts
from retcon.tasks.types import Task
from retcon.train.demos.rolling import (
    LazyList,
    Roller,
    as_generation,
    check_python,
    drawn_tasks,
    open_roller,
    split_rejected,
    try_tasks,
)
from retcon.train.demos.types import DemoBatch, DemoSetup

if TYPE_CHECKING:
    from retcon.train.demos.kinds.openai import OpenAI

_BLOCK = re.compile(r"```(?:python|py)[ \t]*\n(?P<code>.*?)(?:\n```|```|\Z)", re.DOTALL | re.IGNORECASE)


class RemoteTeacher:
    """An engine over a remote model's messages, without log-probs. tasks: of each request id. seeds: whether requests
    have one."""

    def __init__(
        self, model: RemoteModel, chat: Chat, instructions: str, tasks: Mapping[str, Task], *, seeds: bool = True
    ) -> None:
        self._model, self._chat, self._seeds = model, chat, seeds
        self._messages = {
            id: [
                {"role": role, "content": text}
                for role, text in (("system", instructions), *task.before, ("user", task.question))
            ]
            for id, task in tasks.items()
        }

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        messages = self._messages[request_id]
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": PRINTED + self._chat.observations_in(ids)[-1]})
        seed = {"seed": params.seed % 2**31} if self._seeds else {}
        text, whole = await self._model.reply(
            messages, temperature=params.temperature, top_p=params.top_p, max_tokens=params.max_tokens, **seed
        )
        if not whole and not _has_whole_block(text):
            cut = self._chat.tokenizer.encode(text)
            return Generation(tuple(cut[: params.max_tokens]), None, "length")
        words, code = words_and_block(text)
        block = "" if code is None else f"```python\n{code}\n```"
        messages.append({"role": "assistant", "content": "\n".join(filter(None, (words, block)))})
        return as_generation(self._chat, words, code, params.max_tokens)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise EngineError("the teacher returns text: it cannot be scored")

    async def release(self, request_id: str) -> None:
        self._messages.pop(request_id, None)


def _has_whole_block(text: str) -> bool:
    """Return whether a cut-off message has a complete block of Python."""
    found = _BLOCK.search(text)
    return found is not None and found[0].endswith("```")


def words_and_block(text: str) -> tuple[str, str | None]:
    """Return a message's first block of Python, after the text before it; later text came before its output."""
    found = _BLOCK.search(text)
    if found is None or not found["code"].strip():
        return text.strip(), None
    return text[: found.start()].strip(), found["code"].strip("\n")


@dataclass
class RemoteSource:
    """A `Source` of a remote model's rollouts."""

    tasks: LazyList[Task]
    roller: Roller
    model: RemoteModel
    instructions: str
    tries: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 16
    ends: bool = False
    seeds: bool = True

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        """Roll tasks out with the remote model until one is right."""
        tasks = self.tasks.part(start, stop)

        async def attempt(tasks: list[Task], number: int) -> list[Trajectory]:
            asked = {f"{task.id}/{number}/0": task for task in tasks}
            teacher = RemoteTeacher(self.model, self.roller.context.chat, self.instructions, asked, seeds=self.seeds)
            return await self.roller.roll(tasks, teacher, attempt=number)

        return DemoBatch(len(tasks), *split_rejected(await try_tasks(tasks, attempt, keep="right", tries=self.tries)))


@asynccontextmanager
async def open_remote(section: OpenAI, setup: DemoSetup) -> AsyncIterator[RemoteSource]:
    """Open a remote teacher after a short request. Raises RecipeError for a missing URL, model or key, EngineError for
    a server that does not answer."""
    for key in ("url", "model"):
        if not getattr(section, key):
            raise RecipeError(f"demos.{key}: it is empty; demos.kind = 'openai' needs it")
    if is_key_missing(section.key_env):
        raise RecipeError(f"demos.key_env names {section.key_env}, which is not set")
    recipe, tasks = setup.recipe, setup.tasks()
    about: dict[str, Any] = {"key_env": section.key_env, "seconds": section.seconds}
    sampling = build_sampling(recipe)
    seeds = await _takes_seeds(RemoteModel("teacher", section.url, section.model, attempts=1, **about), sampling)
    model = RemoteModel("teacher", section.url, section.model, patience=section.patience, **about)
    idle = RemoteTeacher(model, setup.chat, section.instructions, {})
    fit = LazyList(drop_long_prompts(drawn_tasks(tasks, recipe.run.seed), setup.chat, recipe.rollout.max_tokens))
    try:
        async with open_roller(setup, tasks, idle, model=section.model, sampling=sampling) as roller:
            check_python(roller, "openai")
            yield RemoteSource(fit, roller, model, section.instructions, section.tries, seeds=seeds)
    finally:
        await model.close()


async def _takes_seeds(model: RemoteModel, sampling: SamplingParams) -> bool:
    """Return whether the server takes seeds, by a short request with the usual parameters. Raises EngineError."""
    params: dict[str, object] = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": 16}
    messages = [{"role": "user", "content": "Say yes."}]
    try:
        try:
            await model.message(messages, **params, seed=0)  # reasoning may take all of these tokens
        except RequestRefused as refused:
            if not re.search(r"\bseed\b", refused.error.message):
                raise
            await model.message(messages, **params)
            return False
    except (RequestRefused, InfrastructureFault) as fault:
        raise EngineError(f"demos.url: {fault}") from fault
    finally:
        await model.close()
    return True
