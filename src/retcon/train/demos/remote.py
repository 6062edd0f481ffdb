"""Demonstrations of a model behind a URL. It knows messages alone: what it says is written in the way of the model that
will learn, and what its programs print is told to it as a user would."""

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
from retcon.models.remote import RemoteModel, RequestRefused, key_is_missing
from retcon.rollout.lengths import drop_long_prompts
from retcon.tasks.types import Task
from retcon.train.demos.rolling import (
    Drawn,
    Roller,
    as_generation,
    drawn_tasks,
    need_python,
    open_roller,
    rejections,
    tried,
)
from retcon.train.demos.types import DemoSetup, Made

if TYPE_CHECKING:
    from retcon.train.demos.kinds.openai import OpenAI

_BLOCK = re.compile(r"```(?:python|py)[ \t]*\n(?P<code>.*?)(?:\n```|```|\Z)", re.DOTALL | re.IGNORECASE)


class RemoteTeacher:
    """Engine that asks a model for messages. tasks: of each request id. seeds: whether requests bring one. It has no
    log-probs."""

    def __init__(
        self, model: RemoteModel, chat: Chat, instructions: str, tasks: Mapping[str, Task], *, seeds: bool = True
    ) -> None:
        self._model, self._chat, self._seeds = model, chat, seeds
        self._told = {
            id: [
                {"role": role, "content": text}
                for role, text in (("system", instructions), *task.before, ("user", task.question))
            ]
            for id, task in tasks.items()
        }

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        told = self._told[request_id]
        if told[-1]["role"] == "assistant":
            told.append({"role": "user", "content": PRINTED + self._chat.observations_in(ids)[-1]})
        seed = {"seed": params.seed % 2**31} if self._seeds else {}
        said, whole = await self._model.reply(
            told, temperature=params.temperature, top_p=params.top_p, max_tokens=params.max_tokens, **seed
        )
        if not whole and not _has_whole_block(said):
            cut = self._chat.tokenizer.encode(said)
            return Generation(tuple(cut[: params.max_tokens]), None, "length")
        words, code = words_and_block(said)
        block = "" if code is None else f"```python\n{code}\n```"
        told.append({"role": "assistant", "content": "\n".join(filter(None, (words, block)))})
        return as_generation(self._chat, words, code, params.max_tokens)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise EngineError("the teacher speaks text: nothing that it wrote can be scored")

    async def release(self, request_id: str) -> None:
        self._told.pop(request_id, None)


def _has_whole_block(said: str) -> bool:
    """Whether a message has said all that it is taken for, though it was cut off after that."""
    found = _BLOCK.search(said)
    return found is not None and found[0].endswith("```")


def words_and_block(said: str) -> tuple[str, str | None]:
    """What a message says before its first block of Python, and the block; what follows that was said too early."""
    found = _BLOCK.search(said)
    if found is None or not found["code"].strip():
        return said.strip(), None
    return said[: found.start()].strip(), found["code"].strip("\n")


@dataclass
class RemoteSource:
    """Implements `Source`."""

    tasks: Drawn[Task]
    roller: Roller
    model: RemoteModel
    instructions: str
    tries: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 16
    ends: bool = False
    seeds: bool = True

    async def make(self, start: int, stop: int, kept: int) -> Made:
        """See `Source.make`."""
        tasks = self.tasks.part(start, stop)

        async def attempt(tasks: list[Task], number: int) -> list[Trajectory]:
            asked = {f"{task.id}/{number}/0": task for task in tasks}
            teacher = RemoteTeacher(self.model, self.roller.context.chat, self.instructions, asked, seeds=self.seeds)
            return await self.roller.roll(tasks, teacher, attempt=number)

        return Made(len(tasks), *rejections(await tried(tasks, attempt, keep="right", tries=self.tries)))


@asynccontextmanager
async def open_remote(section: OpenAI, setup: DemoSetup) -> AsyncIterator[RemoteSource]:
    """Asks the server for a word first. Raises RecipeError for a URL, model or key that is not given, EngineError for a
    server that does not answer."""
    for key in ("url", "model"):
        if not getattr(section, key):
            raise RecipeError(f"demos.{key}: it is empty; demos.kind = 'openai' needs it")
    if key_is_missing(section.key_env):
        raise RecipeError(f"demos.key_env names {section.key_env}, which is not set")
    recipe, tasks = setup.recipe, setup.tasks()
    about: dict[str, Any] = {"key_env": section.key_env, "seconds": section.seconds}
    sampling = build_sampling(recipe)
    seeds = await _takes_seeds(RemoteModel("teacher", section.url, section.model, attempts=1, **about), sampling)
    model = RemoteModel("teacher", section.url, section.model, patience=section.patience, **about)
    nobody = RemoteTeacher(model, setup.chat, section.instructions, {})
    fit = Drawn(drop_long_prompts(drawn_tasks(tasks, recipe.run.seed), setup.chat, recipe.rollout.max_tokens))
    try:
        async with open_roller(setup, tasks, nobody, model=section.model, sampling=sampling) as roller:
            need_python(roller, "openai")
            yield RemoteSource(fit, roller, model, section.instructions, section.tries, seeds=seeds)
    finally:
        await model.close()


async def _takes_seeds(model: RemoteModel, sampling: SamplingParams) -> bool:
    """Asks for a word as for all others, and without a seed where that is what is refused: not every server takes one.
    Raises EngineError."""
    asked: dict[str, object] = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": 16}
    said = [{"role": "user", "content": "Say yes."}]
    try:
        try:
            await model.message(said, **asked, seed=0)  # of the tokens reasoning may take all
        except RequestRefused as refused:
            if not re.search(r"\bseed\b", refused.error.message):
                raise
            await model.message(said, **asked)
            return False
    except (RequestRefused, InfrastructureFault) as fault:
        raise EngineError(f"demos.url: {fault}") from fault
    finally:
        await model.close()
    return True
