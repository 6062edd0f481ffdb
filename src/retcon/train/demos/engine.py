"""Demonstrations by a model: its rollouts that the grader accepts, in the learner's template."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retcon.build import build_chat, build_policy, build_sampling
from retcon.chat.chat import Chat
from retcon.chat.family import AUTO
from retcon.chat.opening import THINKING
from retcon.chat.template import read_template
from retcon.chat.types import TextMessage
from retcon.config.load import apply_override
from retcon.core.errors import RecipeError
from retcon.core.types import TRAINED, Segment, Trajectory
from retcon.engine.types import Generator
from retcon.planning.rollouts import check_rollouts_fit
from retcon.rollout.lengths import count_prompt_ids, drop_long_prompts
from retcon.store.fingerprint import fingerprint
from retcon.tasks.types import Task
from retcon.train.datasets.demonstrations import in_template
from retcon.train.demos.rolling import LazyList, Roller, drawn_tasks, open_roller, split_rejected, try_tasks
from retcon.train.demos.types import DemoBatch, DemoSetup

if TYPE_CHECKING:
    from retcon.train.demos.kinds.engine import Engine


@dataclass
class EngineSource:
    """A `Source` of a model's rollouts. into: the learner's chat, if another model writes."""

    tasks: LazyList[Task]
    roller: Roller
    engine: Generator
    into: Chat | None
    tries: int
    inputs: Mapping[str, str]
    chunk: int = 32
    ends: bool = False

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        """Roll tasks out until one is right. Raises RecipeError for a task that the learner's template refuses."""
        tasks = self.tasks.part(start, stop)
        if self.into is not None:
            for task in tasks:
                count_prompt_ids(
                    self.into, task
                )  # raises for tasks that the learner's template refuses, before rollouts

        async def attempt(tasks: list[Task], number: int) -> list[Trajectory]:
            return await self.roller.roll(tasks, self.engine, attempt=number)

        kept_ones, rejected = split_rejected(await try_tasks(tasks, attempt, keep="right", tries=self.tries))
        asked = {task.id: task for task in tasks}
        return DemoBatch(len(tasks), tuple(self._for_learner(one, asked[one.task]) for one in kept_ones), rejected)

    def _for_learner(self, trajectory: Trajectory, task: Task) -> Trajectory:
        if self.into is None:
            return trajectory
        system = self.into.system if task.system is None else task.system
        before: list[TextMessage] = [] if system is None else [("system", system)]
        turns = [replace(turn, segments=tuple(map(self._unended, turn.segments))) for turn in trajectory.turns]
        spoken = replace(trajectory, turns=tuple(turns))
        return in_template(spoken, self.into, [*before, *task.before, ("user", task.question)])

    def _unended(self, segment: Segment) -> Segment:
        """Drop the token that ends the writer's turn: in the learner's template it would be text."""
        chat, last = self.roller.context.chat, (segment.ids or ())[-1:]
        ended = segment.kind in TRAINED and last and last[0] in chat.stop_ids
        return replace(segment, text=segment.text.removesuffix(chat.tokenizer.decode(last))) if ended else segment


@asynccontextmanager
async def open_engine(section: Engine, setup: DemoSetup) -> AsyncIterator[EngineSource]:
    """Open the teacher. Raises CheckpointError for a missing model, RecipeError, MissingExtra without torch."""
    from retcon.models.locating import model_folder

    recipe, tasks = setup.recipe, setup.tasks()
    folder, chat = model_folder(section.model or recipe.model.path), setup.chat
    if recipe.engine.chat(folder, None, ()) is not None:
        raise RecipeError(
            f"demos.kind = 'engine' needs a model's token ids, and engine.kind = '{recipe.engine.kind}' returns text "
            "alone: a teacher behind a URL is demos.kind = 'openai', with demos.url and demos.model"
        )
    if section.model and recipe.rollout.harness:
        raise RecipeError(
            "rollout.harness: its prompts to another model (demos.model) are in that model's template, and cannot be "
            "converted: leave one of them out"
        )
    if section.model:
        source = read_template(folder) if section.style == AUTO else None
        known = set() if source is None else source.compiled().reads
        own = recipe if THINKING in known else apply_override(recipe, "model.thinking=default")
        kwargs = {key: value for key, value in recipe.model.chat_template_kwargs.items() if key in known}
        own = own.model_copy(update={"model": own.model.model_copy(update={"chat_template_kwargs": kwargs})})
        chat = build_chat(apply_override(own, f"model.style={section.style}"), folder, tasks)
    check_rollouts_fit(recipe, folder)
    engine = build_policy(recipe, folder, chat, setup.on_place)
    fit = drop_long_prompts(drawn_tasks(tasks, recipe.run.seed), chat, recipe.rollout.max_tokens)
    name = section.model or recipe.model.path
    closing = engine if isinstance(engine, AbstractAsyncContextManager) else nullcontext()
    sampling = build_sampling(recipe)
    roller_of = open_roller(setup, tasks, engine, model=name, chat=chat, sampling=sampling, harnessed=True)
    async with closing, roller_of as roller:  # training, which follows, needs the memory
        into = setup.chat if section.model else None
        yield EngineSource(LazyList(fit), roller, engine, into, section.tries, {"teacher": fingerprint(folder)})
