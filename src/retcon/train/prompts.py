"""Which prompts a training run draws, in which order."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.config.schema import Recipe, SelectSection
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.types import TRAINED, Sample, TrainingRecord, Trajectory, ids_of
from retcon.rollout.lengths import PromptError, count_prompt_ids, drop_long_prompts, warn_of_long_prompts
from retcon.select.filters import DynamicSampling, filter_by_pass_rate, is_informative
from retcon.store.pass_rates import PassRate, read_pass_rates, select_model
from retcon.tasks.registry import TaskSet, training_prompts
from retcon.tasks.types import Task, epochs, fingerprint_of
from retcon.train.objective.shaping import has_void_turn, is_masked
from retcon.train.objective.tree import node_fates

if TYPE_CHECKING:
    from retcon.chat.chat import Chat


@dataclass(slots=True)
class Drawn:
    """The groups of a step, in the order in which their prompts were drawn.

    made: all rollouts, (groups, G'). kept: what selection left of each, (groups, up to G), none where faults and masks
    left fewer than two (`comparable`). rounds: how often more prompts were drawn.
    """

    made: list[list[Trajectory]] = field(default_factory=list)
    kept: list[list[Trajectory]] = field(default_factory=list)
    rounds: int = 0

    def add(self, made: Sequence[Trajectory], kept: Sequence[Trajectory]) -> None:
        self.made.append(list(made))
        self.kept.append(list(kept))


def to_train(recipe: Recipe, drawn: Drawn) -> list[list[Trajectory]]:
    """The groups that an update is made of: with dynamic sampling those that teach something, else all that are left.

    A group whose rewards are all equal has no gradient, but counts where the loss is averaged over ids or samples.
    """
    return [group for group in drawn.kept if (is_informative(group) if recipe.select.dynamic else group)]


def selected(recipe: Recipe, drawn: Drawn) -> Iterator[Trajectory]:
    """All rollouts of a step, each with what became of it as its `selection`.

    kept: trained on. infrastructure: lost to a fault. masked: out of the loss by `rl.void_turns` or `rl.truncated`.
    few: its group has fewer than two rollouts to compare. flat: dynamic sampling left its group out. Otherwise why the
    selection dropped it (`SelectSection.why`). Children are `kept` with their root, if [credit] trains any, unless
    something else became of them (`node_fates`).
    """
    for made, kept in zip(drawn.made, drawn.kept, strict=True):
        chosen = {t.id for t in kept}
        why = iter(recipe.select.why([t for t in made if t.id not in chosen], kept))
        group = "few" if not kept else "flat" if recipe.select.dynamic and not is_informative(kept) else ""
        for t in made:
            selection = "kept" if t.id in chosen else next(why)
            lost = "infrastructure" if t.stop == "infrastructure" else "masked" if is_masked(t, recipe.rl) else group
            yield _with_children(t, lost or selection, recipe)


def _with_children(root: Trajectory, selection: str, recipe: Recipe) -> Trajectory:
    """A root with this selection, its children with theirs."""
    if not root.children:
        return replace(root, selection=selection)
    rest = "root_only" if selection == "kept" and recipe.credit.kind == "root" else selection
    fates = {node.id: fate or rest for node, fate in node_fates(root, recipe.rl)} | {root.id: selection}

    def changed(node: Trajectory) -> Trajectory:
        return replace(node, selection=fates[node.id], children=tuple(map(changed, node.children)))

    return changed(root)


LearntSamples = dict[str, tuple[float, Sample]]
"""A rollout's id to its advantage and the sample that its loss was computed on."""


def recorded(
    rollouts: Iterable[Trajectory], step: int, learnt: LearntSamples, seconds: Mapping[str, float | None]
) -> Iterator[Trajectory]:
    """Add to each rollout what the step made of it (`TrainingRecord`). seconds: wall, by its id."""

    def with_record(t: Trajectory) -> Trajectory:
        versions = [v for s in t.segments if s.kind in TRAINED for v in s.versions or ()]
        took = seconds.get(t.id)
        record = TrainingRecord(
            staleness=step - 1 - min(versions) if versions else None, seconds=None if took is None else round(took, 4)
        )
        if t.id in learnt:
            advantage, sample = learnt[t.id]
            by_kind = [int(s.kind in TRAINED) for s in t.segments for _ in s.ids or ()]
            plain = all(a == advantage for a in sample.advantages or ())
            record = replace(
                record,
                advantage=advantage,
                advantages=None if plain else sample.advantages,
                mask=None if list(sample.mask) == by_kind else run_lengths(sample.mask),
                weights=None if sample.weights is None else tuple(1.0 if w is None else w for w in sample.weights),
            )
        return replace(t, training=record, children=tuple(map(with_record, t.children)))

    return map(with_record, rollouts)


def run_lengths(mask: Iterable[int]) -> tuple[int, ...]:
    """Lengths of alternating runs of zeros and ones, zeros first."""
    found, value = [0], 0
    for one in mask:
        if one != value:
            found.append(0)
            value = one
        found[-1] += 1
    return tuple(found)


def selection_metrics(recipe: Recipe, drawn: Drawn) -> dict[str, float]:
    """Metrics of a step's groups.

    kept: rollouts that are trained on; kept_right: those of positive reward. groups_drawn, groups_kept: in all, and
    those that are trained on. groups_skipped: groups of which faults and masks left fewer than two. groups_flat: those
    whose rewards are all equal, after selection. extra_groups, extra_rollouts, extra_rounds: what dynamic sampling
    cost. groups_short: by how many informative groups the step stayed behind at its bound. dropped_…: rollouts that
    selection left out, by its reason. void_masked, truncated_masked: rollouts that these keys of [rl] mask.
    """
    prompts, trained = recipe.rl.prompts, to_train(recipe, drawn)
    fates = Counter(t.selection for t in selected(recipe, drawn))
    ended = [t for group in drawn.made for t in group if t.stop != "infrastructure"]
    told = sum(map(is_informative, drawn.kept))
    skipped = sum(not group for group in drawn.kept)
    return {
        "kept": sum(map(len, trained)),
        "kept_right": sum((t.reward or 0) > 0 for group in trained for t in group),
        "groups_drawn": len(drawn.made),
        "groups_kept": sum(map(bool, trained)),
        "groups_skipped": skipped,
        "groups_flat": len(drawn.kept) - skipped - told,
        "extra_groups": len(drawn.made) - prompts,
        "extra_rollouts": sum(map(len, drawn.made[prompts:])),
        "extra_rounds": drawn.rounds,
        "groups_short": max(0, prompts - told) if recipe.select.dynamic else 0,
        **{f"dropped_{reason}": fates[reason] for reason in recipe.select.reasons},
        **({"void_masked": sum(map(has_void_turn, ended))} if recipe.rl.void_turns == "mask" else {}),
        **({"truncated_masked": sum(t.stop == "length" for t in ended)} if recipe.rl.truncated == "mask" else {}),
    }


def dynamic_sampling(recipe: Recipe) -> DynamicSampling | None:
    """The dynamic sampling that a recipe asks for."""
    section, prompts = recipe.select, recipe.rl.prompts
    if not section.dynamic:
        return None
    return DynamicSampling.bounded(prompts, section.max_extra, section.max_rounds)


LOOK = 10_000
"""Tasks that are looked at before a run starts, at most: a long run on a large set should not wait for all of them."""


@dataclass(slots=True)
class Position:
    """Where a run stands in its data: the epoch, from 0, and how many of its tasks were looked at, whether they were
    drawn or left out. put_off: those among them that are still to come, as they had just come (see `epochs`)."""

    epoch: int = 0
    looked: int = 0
    put_off: tuple[Task, ...] = ()


def refuse_idle_bounds(select: SelectSection, where: str = "") -> None:
    """Raises RecipeError, which begins with `where`, for bounds of pass rates without the file that has the rates: all
    tasks would be drawn."""
    about = type(select).model_fields
    idle = [key for key in ("min_pass_rate", "max_pass_rate") if getattr(select, key) != about[key].default]
    if idle and not select.pass_rates:
        raise RecipeError(
            f"{where}select.{idle[0]} = {getattr(select, idle[0])} leaves out nothing without select.pass_rates: name "
            f"a file of `retcon difficulty` there, which measures the rates, or leave {idle[0]} out"
        )


class PromptStream:
    """The prompts of a run, or of a stage of one: the task set's training stream, again and again where it ends,
    without those that leave no room to answer and those that the recipe's pass rates leave out. A stage goes on in its
    data where one before it stopped (`Position`): what that has seen does not come again before the rest has come.

    chat: what the prompts are rendered with. model: fingerprint of the model that the run starts from, whose rates
    count; where the file has none of it, those of the only model that it has. steps: that draw of these data until the
    end of this stage, those of earlier stages among them; rl.steps where None. inputs: what the order depends on
    besides the recipe, name to fingerprint.

    What these steps can come to need is looked at first, all of it where there are pass rates, else LOOK tasks at most.
    Raises RecordError for a file that is broken, RecipeError where it holds rates of several other models, where a task
    has no rate, where none is within the bounds, where no prompt leaves room to answer, or where a step can draw more
    tasks than there are. Warns (TaskWarning) where some prompts are left out for their length, and where rates are of
    other problems under the same ids, or of rollouts that another harness made.
    """

    def __init__(self, recipe: Recipe, tasks: TaskSet, *, chat: Chat, model: str, steps: int | None = None) -> None:
        self.tasks = tasks
        self._recipe, self._chat = recipe, chat
        dynamic = dynamic_sampling(recipe)
        self._of_a_step = recipe.rl.prompts + (dynamic.extra if dynamic else 0)
        rates = recipe.select.pass_rates
        self._measured = measured_of(Path(rates), model) if rates else {}
        self._rates = {task: one.rate for task, one in self._measured.items()}
        self._needed = (recipe.rl.steps if steps is None else steps) * self._of_a_step
        self.inputs = {"tasks": f"{tasks.name} {self._identity()}"}
        if not self._rates:
            for _ in islice(self._stream(), min(self._needed, LOOK)):
                pass  # a set that cannot serve says so
        else:
            self.inputs["pass rates"] = self._check()

    @property
    def first_prompt(self) -> Sequence[int]:
        """The ids of the first task's prompt, whether it is drawn or left out."""
        task = next(training_prompts(self.tasks, self._recipe.run.seed))
        return ids_of(self._chat.prompt(task.question, task.system, task.before))

    def after(self, drawn: int, begin: Position | None = None) -> Iterator[Task]:
        """The stream after its first `drawn` tasks. begin: where it begins in the data."""
        return islice(self._stream(begin or Position()), drawn, None)

    def position(self, drawn: int, begin: Position) -> Position:
        """Where in the data the stream stands once `drawn` tasks of it have been drawn."""
        at = Position(begin.epoch, begin.looked, begin.put_off)
        waiting: list[Task] = []

        def epoch(number: int) -> Iterator[Task]:
            for task in self._epoch(begin, at, number):
                waiting.append(task)
                yield task

        for task in islice(epochs(epoch, apart=self._of_a_step), drawn):
            waiting.remove(task)
        at.put_off = (*waiting, *at.put_off)
        return at

    def _stream(self, begin: Position | None = None) -> Iterator[Task]:
        return epochs(partial(self._epoch, begin or Position(), None), apart=self._of_a_step)

    def _epoch(self, begin: Position, at: Position | None, number: int) -> Iterator[Task]:
        """at: gets the position, task by task."""
        stream = self._looked(begin.epoch + number, at)
        if begin.looked:  # what is left of the epoch may be too little for a step, or nothing: the next one is joined
            after = self._looked(begin.epoch + number + 1, at)
            put_off = self._put_off(begin, at)
            stream = chain(put_off, islice(stream, begin.looked, None), after) if not number else after
        stream = drop_long_prompts(stream, self._chat, self._recipe.rollout.max_tokens)
        if not self._rates:
            return stream
        section = self._recipe.select
        return filter_by_pass_rate(stream, self._rates, low=section.min_pass_rate, high=section.max_pass_rate)

    def _looked(self, epoch: int, at: Position | None) -> Iterator[Task]:
        for number, task in enumerate(training_prompts(self.tasks, self._recipe.run.seed, epoch), start=1):
            if at is not None:
                at.epoch, at.looked = epoch, number
            yield task

    def _put_off(self, begin: Position, at: Position | None) -> Iterator[Task]:
        for number, task in enumerate(begin.put_off, start=1):
            if at is not None:
                at.put_off = begin.put_off[number:]
            yield task

    def _identity(self) -> str:
        """A hash of the tasks at the stream's beginning, by content. Warns where prompts are too long."""
        digest = hashlib.sha256(json.dumps([self.tasks.name, self.tasks.system]).encode())
        limit = self._recipe.rollout.max_tokens
        looked, long = 0, []
        for task in islice(training_prompts(self.tasks, self._recipe.run.seed), min(self._needed, LOOK)):
            digest.update(task.content)
            looked += 1
            if (length := count_prompt_ids(self._chat, task)) >= limit:
                long.append(length)
        if len(long) < looked:  # else the stream says so
            warn_of_long_prompts(long, looked, limit)
        return digest.hexdigest()[:16]

    def _check(self) -> str:
        """A hash of the tasks that the run can need, at the bound of its dynamic sampling. Warns where their rates are
        of other problems, or of another harness."""
        file = self._recipe.select.pass_rates
        digest = hashlib.sha256()
        found, changed = 0, []
        try:
            for task in islice(self._stream(), self._needed):
                digest.update(task.id.encode() + b"\n")
                found += 1
                if self._measured[task.id].content not in (None, fingerprint_of([task])):
                    changed.append(task.id)
        except PromptError:  # whatever the rates are
            raise
        except RecipeError as error:
            raise RecipeError(
                f"select.pass_rates = {file}: {error}. The run can need {self._needed} tasks within the bounds, and "
                f"{found} come before: measure more (`retcon difficulty --tasks`, with the same task set and "
                "run.seed; of a stage, --stage), train for fewer steps, or change select.min_pass_rate and "
                "select.max_pass_rate"
            ) from None
        if changed:
            warnings.warn(
                f"select.pass_rates = {file}: {len(changed)} of {found} tasks have changed since their rates were "
                f"measured ({changed[0]} is the first): `retcon difficulty --out` of another file measures them anew",
                TaskWarning,
                stacklevel=3,
            )
        own = self._recipe.rollout.harness
        told = {one.harness for one in self._measured.values() if one.harness is not None}
        if others := sorted(name for name in told if name.rpartition(" ")[0] != own):
            by, now = (f"rollout.harness = {name}" if name else "no harness" for name in (others[0], own))
            warnings.warn(
                f"select.pass_rates = {file}: rates were measured with {by}, and this run has {now}: `retcon "
                "difficulty --out` of another file measures them anew",
                TaskWarning,
                stacklevel=3,
            )
        return digest.hexdigest()[:16]


def measured_of(file: Path, model: str = "") -> dict[str, PassRate]:
    """Task to its measurement with that model, or the only one in the file. Raises RecordError, RecipeError as
    `PromptStream`."""
    measured = list(read_pass_rates(file))
    models = sorted({one.model for one in measured})
    if not models:
        raise RecipeError(f"select.pass_rates = {file}: it contains no pass rate; `retcon difficulty` measures some")
    if model not in models:
        if len(models) > 1:
            which = (
                f", none of which is the one that this run starts from ({model}): measure that one, or"
                if model
                else ":"
            )
            found = f"{len(models)} models ({', '.join(models)}){which}"
            raise RecipeError(f"select.pass_rates = {file} has rates of {found} name a file with one model")
        model = models[0]
    return select_model(iter(measured), model)
