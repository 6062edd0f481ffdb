"""Prompts of a training run, their order and the selected rollouts."""

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
class StepGroups:
    """The groups of a step, in the order of their prompts.

    made: all rollouts, (groups, G'). kept: the selected ones, (groups, up to G), empty if faults and masks left fewer
    than two (`comparable`). rounds: how often more prompts were drawn.
    """

    made: list[list[Trajectory]] = field(default_factory=list)
    kept: list[list[Trajectory]] = field(default_factory=list)
    rounds: int = 0

    def add(self, made: Sequence[Trajectory], kept: Sequence[Trajectory]) -> None:
        self.made.append(list(made))
        self.kept.append(list(kept))


def groups_to_train(recipe: Recipe, drawn: StepGroups) -> list[list[Trajectory]]:
    """Return the groups of an update: with dynamic sampling informative ones, else all.

    A group of equal rewards has no gradient, but counts in means of the loss over ids or samples.
    """
    return [group for group in drawn.kept if (is_informative(group) if recipe.select.dynamic else group)]


def with_selections(recipe: Recipe, drawn: StepGroups) -> Iterator[Trajectory]:
    """Yield all rollouts of a step with their `selection`.

    kept: trained on. infrastructure: lost to a fault. masked: out of the loss by `rl.void_turns` or `rl.truncated`.
    few: its group has fewer than two rollouts to compare. flat: dynamic sampling left its group out. Otherwise the
    selection's reason to drop it (`SelectSection.why`). Children are `kept` with their root, if [credit] trains any,
    unless `node_fates` has another fate for them.
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
    """Return a root with this selection, and its children with theirs."""
    if not root.children:
        return replace(root, selection=selection)
    rest = "root_only" if selection == "kept" and recipe.credit.kind == "root" else selection
    fates = {node.id: fate or rest for node, fate in node_fates(root, recipe.rl)} | {root.id: selection}

    def changed(node: Trajectory) -> Trajectory:
        return replace(node, selection=fates[node.id], children=tuple(map(changed, node.children)))

    return changed(root)


LearntSamples = dict[str, tuple[float, Sample]]
"""A rollout's id to its advantage and the sample that its loss was computed on."""


def with_records(
    rollouts: Iterable[Trajectory], step: int, learnt: LearntSamples, seconds: Mapping[str, float | None]
) -> Iterator[Trajectory]:
    """Add each rollout's `TrainingRecord` of the step. seconds: wall, by its id."""

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
    """Return lengths of alternating runs of zeros and ones, zeros first."""
    found, value = [0], 0
    for one in mask:
        if one != value:
            found.append(0)
            value = one
        found[-1] += 1
    return tuple(found)


def selection_metrics(recipe: Recipe, drawn: StepGroups) -> dict[str, float]:
    """Return metrics of a step's groups.

    kept: rollouts that are trained on; kept_right: those of positive reward. groups_drawn, groups_kept: in all, and
    trained on. groups_skipped: groups of which faults and masks left fewer than two. groups_flat: those of equal
    rewards, after selection. extra_groups, extra_rollouts, extra_rounds: cost of dynamic sampling. groups_short:
    informative groups that the step lacks at its bound. dropped_…: rollouts that selection left out, by its reason.
    void_masked, truncated_masked: rollouts that these keys of [rl] mask.
    """
    prompts, trained = recipe.rl.prompts, groups_to_train(recipe, drawn)
    fates = Counter(t.selection for t in with_selections(recipe, drawn))
    ended = [t for group in drawn.made for t in group if t.stop != "infrastructure"]
    useful = sum(map(is_informative, drawn.kept))
    skipped = sum(not group for group in drawn.kept)
    return {
        "kept": sum(map(len, trained)),
        "kept_right": sum((t.reward or 0) > 0 for group in trained for t in group),
        "groups_drawn": len(drawn.made),
        "groups_kept": sum(map(bool, trained)),
        "groups_skipped": skipped,
        "groups_flat": len(drawn.kept) - skipped - useful,
        "extra_groups": len(drawn.made) - prompts,
        "extra_rollouts": sum(map(len, drawn.made[prompts:])),
        "extra_rounds": drawn.rounds,
        "groups_short": max(0, prompts - useful) if recipe.select.dynamic else 0,
        **{f"dropped_{reason}": fates[reason] for reason in recipe.select.reasons},
        **({"void_masked": sum(map(has_void_turn, ended))} if recipe.rl.void_turns == "mask" else {}),
        **({"truncated_masked": sum(t.stop == "length" for t in ended)} if recipe.rl.truncated == "mask" else {}),
    }


def dynamic_sampling(recipe: Recipe) -> DynamicSampling | None:
    """Return the recipe's dynamic sampling, None if off."""
    section, prompts = recipe.select, recipe.rl.prompts
    if not section.dynamic:
        return None
    return DynamicSampling.bounded(prompts, section.max_extra, section.max_rounds)


LOOK = 10_000
"""Most tasks that are examined before a run: a long run on a large set should not wait for all of them."""


@dataclass(slots=True)
class Position:
    """Position of a run in its data: the epoch, from 0, and its tasks examined so far, drawn or left out. put_off:
    those among them that are still to come, as they had just been drawn (see `epochs`)."""

    epoch: int = 0
    looked: int = 0
    put_off: tuple[Task, ...] = ()


def check_rate_bounds(select: SelectSection, where: str = "") -> None:
    """Check that bounds of pass rates have a file of rates. Raises RecipeError, which begins with `where`."""
    about = type(select).model_fields
    idle = [key for key in ("min_pass_rate", "max_pass_rate") if getattr(select, key) != about[key].default]
    if idle and not select.pass_rates:
        raise RecipeError(
            f"{where}select.{idle[0]} = {getattr(select, idle[0])} leaves out nothing without select.pass_rates: name "
            f"a file of `retcon difficulty` there, which measures the rates, or leave {idle[0]} out"
        )


class PromptStream:
    """The prompts of a run or a stage: the task set's training stream, repeated.

    Prompts without room to answer, and tasks outside the recipe's pass rates, are left out. A stage goes on in its data
    where one before it stopped (`Position`): tasks that it has seen come again only after the rest.

    chat: renders the prompts. model: fingerprint of the initial model, whose rates count; if the file lacks it, those
    of its only model. steps: that draw from these data until the end of this stage, earlier stages included; None for
    rl.steps. inputs: what the order depends on besides the recipe, name to fingerprint.

    Tasks that these steps may need are examined first: all with pass rates, else up to LOOK. Raises RecordError for a
    broken file, RecipeError if it holds rates of several other models, a task has no rate, no task is within the
    bounds, no prompt leaves room to answer, or a step can draw more tasks than there are. Warns (TaskWarning) of
    prompts left out for their length, and of rates of other problems with the same ids, or of another harness.
    """

    def __init__(self, recipe: Recipe, tasks: TaskSet, *, chat: Chat, model: str, steps: int | None = None) -> None:
        self.tasks = tasks
        self._recipe, self._chat = recipe, chat
        dynamic = dynamic_sampling(recipe)
        self._of_a_step = recipe.rl.prompts + (dynamic.extra if dynamic else 0)
        rates = recipe.select.pass_rates
        self._measured = rates_of(Path(rates), model) if rates else {}
        self._rates = {task: one.rate for task, one in self._measured.items()}
        self._needed = (recipe.rl.steps if steps is None else steps) * self._of_a_step
        self.inputs = {"tasks": f"{tasks.name} {self._identity()}"}
        if not self._rates:
            for _ in islice(self._stream(), min(self._needed, LOOK)):
                pass  # an unusable set raises
        else:
            self.inputs["pass rates"] = self._check()

    @property
    def first_prompt(self) -> Sequence[int]:
        """Ids of the first task's prompt, drawn or left out."""
        task = next(training_prompts(self.tasks, self._recipe.run.seed))
        return ids_of(self._chat.prompt(task.question, task.system, task.before))

    def after(self, drawn: int, begin: Position | None = None) -> Iterator[Task]:
        """Return the stream after its first `drawn` tasks. begin: its start in the data."""
        return islice(self._stream(begin or Position()), drawn, None)

    def position(self, drawn: int, begin: Position) -> Position:
        """Return the position in the data after `drawn` tasks."""
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
        """Return one epoch's tasks. at: gets the position, task by task."""
        stream = self._looked(begin.epoch + number, at)
        if begin.looked:  # the rest of the epoch may be too little for a step, or empty: the next one is joined
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
        """Hash the tasks at the stream's beginning, by content. Warns of prompts that are too long."""
        digest = hashlib.sha256(json.dumps([self.tasks.name, self.tasks.system]).encode())
        limit = self._recipe.rollout.max_tokens
        looked, long = 0, []
        for task in islice(training_prompts(self.tasks, self._recipe.run.seed), min(self._needed, LOOK)):
            digest.update(task.content)
            looked += 1
            if (length := count_prompt_ids(self._chat, task)) >= limit:
                long.append(length)
        if len(long) < looked:  # else the stream raises
            warn_of_long_prompts(long, looked, limit)
        return digest.hexdigest()[:16]

    def _check(self) -> str:
        """Hash the tasks that the run can need, at the bound of its dynamic sampling. Warns of rates of other problems,
        or of another harness."""
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
        names = {one.harness for one in self._measured.values() if one.harness is not None}
        if others := sorted(name for name in names if name.rpartition(" ")[0] != own):
            by, now = (f"rollout.harness = {name}" if name else "no harness" for name in (others[0], own))
            warnings.warn(
                f"select.pass_rates = {file}: rates were measured with {by}, and this run has {now}: `retcon "
                "difficulty --out` of another file measures them anew",
                TaskWarning,
                stacklevel=3,
            )
        return digest.hexdigest()[:16]


def rates_of(file: Path, model: str = "") -> dict[str, PassRate]:
    """Return tasks' pass rates with that model, or the file's only one. Raises RecordError, RecipeError as
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
