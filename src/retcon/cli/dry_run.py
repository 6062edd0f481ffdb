"""Plans for `--dry-run`: loads, costs, and settings that cannot fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retcon.build import build_chat, build_engine_chat, build_tasks, resolve_lengths, with_evaluation_repair
from retcon.cli.arguments import plain_console
from retcon.config.schema import Recipe, Stage, stages_of
from retcon.core.errors import RecipeError
from retcon.core.texts import counted
from retcon.core.types import Sample
from retcon.evaluate.runner import is_complete, result_in, settings_of
from retcon.models.loading import load_config
from retcon.models.locating import is_unfetched, locate, model_folder
from retcon.models.placing import place_training
from retcon.planning.estimate import USED, Speed, measure_speed, needs_on_gpus, published, step_seconds
from retcon.planning.needs import Needs, check_fits, check_memory_fits, free_on, gib, needs_of, table, warn_of_rate
from retcon.rollout.lengths import DerivedLength, check_lengths, context_of, open_keys
from retcon.runs.folder import RunKind, check_free
from retcon.runs.progress import format_duration
from retcon.tasks.registry import EVERY, TaskSet, evaluation_tasks, problems_of
from retcon.train.measuring import Measurement, measure_evaluation, measure_rl, measure_updates
from retcon.train.settling import ResolvedRun
from retcon.train.stages import prepare_run

DAY = 86400
SHARED = 1.3
"""Total times are given from the estimate to so many times it: later rollouts may be longer, the machine busier."""


def plan_rl(
    recipe: Recipe, name: str | Path, out: Path, gpus: Speed | None = None, settled: ResolvedRun | None = None
) -> None:
    """Print the plan of `retcon train`, stage by stage. Raises what the run itself would before it starts. gpus: GPUs
    of verl; for those, and for models that are not here, costs are by formula."""
    if gpus or is_unfetched(str(name)):
        _plan_unfetched(recipe, str(name), out, gpus)
        return
    folder = locate(name)
    ready = prepare_run(recipe, folder, out, settled=settled)
    settled, stages, each = ready.settled, ready.stages, ready.each
    recipe = settled.recipe
    about = recipe.evaluate
    problems = evaluation_tasks(settled.tasks, about.problems, about.seed) if about.every else []
    show = plain_console()
    largest = max((needs for _, _, needs in each), key=lambda needs: needs.disk + needs.rollouts)
    _head(show, folder, out, largest, ready.place.line, settled.derived)
    seconds = 0.0
    for stage, tasks, needs in each:
        show.print(f"tasks: {tasks.name}{_task_count(tasks)}; nothing is fetched")
        _stage(show, stage, needs)
        check_fits(needs, out, stage)
        warn_of_rate("rl", stage.recipe, needs.parameters)
    for stage, _, _ in each:
        show.print(f"measuring a first step{f' of {stage}' if stage.name else ''} …", style="dim")
        if stages.waits(stage):
            rates = stage.recipe.select.pass_rates
            show.print(f"{stage}: {rates} is not there yet: the run will stop before this stage, to have it measured")
        measured = measure_rl(stage.recipe, folder, stages.stream(stage), ready.place)
        seconds += _print_time(show, measured, stage.steps, _eval_seconds(show, recipe, stage, measured, len(problems)))
    _advise(show, seconds)
    if recipe.stages:
        steps = counted(recipe.rl.steps, "step")
        show.print(Text(f"{steps} in all: {format_duration(seconds)} to {format_duration(SHARED * seconds)}", "bold"))


def _plan_unfetched(recipe: Recipe, name: str, out: Path, gpus: Speed | None) -> None:
    """By the model's published sizes, without weights and data. Raises RecipeError where lengths follow prompts."""
    if "rollout.max_tokens" in open_keys(recipe):
        raise RecipeError("rollout.max_tokens depends on the prompts and the model, which are not here: set it")
    show, stages = plain_console(), stages_of(recipe)
    reference = any(stage.recipe.rl.kl for stage in stages)
    with published(name) as folder:
        text, place = load_config(folder).get_text_config(), place_training(recipe, folder, reference=reference)
        if gpus:
            each = [needs_on_gpus(stage.recipe, folder, gpus) for stage in stages]
        else:
            each = [needs_of("rl", stage.recipe, folder, place, reference=reference) for stage in stages]
    speed = gpus or measure_speed(place)
    line = f"computing in verl on {speed.devices} × {speed.name}" if gpus else place.line
    largest = max(each, key=lambda needs: needs.disk + needs.rollouts)
    _head(show, f"{name} by its published sizes, without weights or data", out, largest, line, ())
    usual = longest = 0.0
    for stage, needs in zip(stages, each, strict=True):
        _stage(show, stage, needs, speed.memory or None)
        most = stage.recipe.rollout.max_response_tokens or stage.recipe.rollout.max_tokens
        rollouts, updates = step_seconds(stage.recipe, text, needs, speed, USED * most)
        usual += stage.steps * (rollouts + updates)
        longest += stage.steps * sum(step_seconds(stage.recipe, text, needs, speed, most))
        show.print(
            f"rollouts of {USED * most:,.0f} tokens in the mean (CLEANER's share of their limit): "
            f"{format_duration(rollouts)} a step, updates {format_duration(updates)}"
        )
    total = f"{counted(recipe.rl.steps, 'step')}: about {usual / DAY:,.1f} days"
    rest = f", {longest / DAY:,.1f} if all rollouts use up their limit; by formula, without evaluations and lookaheads"
    show.print(Text.assemble((total, "bold"), rest))
    for stage, needs in zip(stages, each, strict=True):
        if gpus:
            check_memory_fits(needs, stage, gpus.memory)
        else:
            check_fits(needs, out, stage)


def _stage(show: Console, stage: Stage, needs: Needs, room: int | None = None) -> None:
    recipe = stage.recipe
    group = recipe.select.made(recipe.rl.group)
    most = recipe.rl.prompts * group * recipe.rollout.max_tokens
    if stage.name:
        anew = ", with a new optimiser" if stage.anew else ""
        show.print(Text(f"\n{stage}: steps {stage.before + 1} to {stage.last}{anew}", "bold"))
    show.print(
        f"a step: {counted(recipe.rl.prompts, 'prompt')} × {counted(group, 'rollout')}, {most:,} tokens at most; "
        f"{counted(stage.steps, 'step')}, a checkpoint every {recipe.rl.checkpoint_every}"
    )
    _memory(show, needs, room)


def plan_sft(recipe: Recipe, demonstrations: Path, out: Path) -> None:
    """Print the plan of `retcon sft` on an existing file. Raises what the training would before it starts."""
    from retcon.train.datasets.demonstrations import read_samples
    from retcon.train.sft import plan_sampling

    folder = model_folder(recipe.model.path)
    if not demonstrations.exists():
        raise RecipeError(
            f"{demonstrations} is not there: --dry-run needs the demonstrations, which the command itself "
            "writes where it can; give some with --demonstrations"
        )
    samples = read_samples(
        demonstrations, build_chat(recipe, folder), vocabulary=_vocabulary(folder), max_tokens=context_of(folder)
    )
    plan_sampling(recipe, folder, out, max(recipe.sft.samples, recipe.sft.first_repair))
    _plan_updates("sft", recipe, folder, out, samples, recipe.sft.batch, recipe.sft.steps)


def plan_dpo(recipe: Recipe, pairs: Path, folder: Path, out: Path) -> None:
    """Print the plan of `retcon dpo`."""
    from retcon.train.datasets.preferences import read_preferences

    read = read_preferences(
        pairs, build_chat(recipe, folder), vocabulary=_vocabulary(folder), max_tokens=context_of(folder)
    )
    samples = [sample for pair in read for sample in (pair.chosen, pair.rejected)]
    _plan_updates("dpo", recipe, folder, out, samples, 2 * recipe.dpo.batch, recipe.dpo.steps)


def plan_evaluation(recipe: Recipe, folder: Path, out: Path) -> None:
    """Print the plan of `retcon eval`, or that it is finished. Raises what the evaluation itself would before it
    starts."""
    recipe.task.check_rollouts(with_evaluation_repair(recipe))
    tasks = build_tasks(recipe, folder)
    recipe, derived = resolve_lengths(recipe, folder, tasks)
    problems = problems_of(recipe, tasks)
    if is_complete(result_in(recipe, folder, out, problems, tasks), recipe, out, len(problems)):
        plain_console().print(f"result: {out / 'result.json'}, which is whole: nothing is left to measure")
        return
    check_lengths(problems, build_engine_chat(recipe, folder, tasks), recipe.rollout.max_tokens, "problems")
    recipe = recipe.model_copy(
        update={"evaluate": recipe.evaluate.model_copy(update={"problems": max(1, len(problems))})}
    )
    show = plain_console()
    settings = len(settings_of(recipe))
    count = settings * len(problems) * recipe.evaluate.samples
    each = f" in each of {settings} settings" if settings > 1 else ""
    there = evaluation_tasks(tasks, EVERY, recipe.evaluate.seed) if getattr(tasks, "ends", False) else problems
    of = f"{len(problems):,} of" if len(there) == len(problems) else f"{len(problems):,} of the {len(there):,} of"
    asked = f"problems: {of} {tasks.name} × {counted(recipe.evaluate.samples, 'rollout')}{each}"
    if not recipe.engine.in_process:
        show.print(f"model: {recipe.engine.subject(folder)}, which computes elsewhere: its time is not known\n{asked}")
        _print_lengths(show, derived)
        return
    place = place_training(recipe, folder, ("rollout_dtype",))
    needs = needs_of("eval", recipe, folder, place)
    _head(show, folder, out, needs, place.line, derived)
    show.print(asked)
    _memory(show, needs)
    check_fits(needs, out)
    show.print("measuring some rollouts …", style="dim")
    measured = measure_evaluation(recipe, folder, problems, tasks)
    kind = "" if measured.whole else " at most: not all rollouts of the measurement came to their end"
    total = (measured.rollout_seconds or 0.0) * count
    show.print(
        f"{measured.sampled_per_second:,.0f} tokens/s sampled; {counted(count, 'rollout')} in all: "
        f"{format_duration(total)} to {format_duration(SHARED * total)}{kind}"
    )


def _plan_updates(
    kind: RunKind, recipe: Recipe, folder: Path, out: Path, samples: Sequence[Sample], batch: int, steps: int
) -> None:
    place = place_training(recipe, folder, ("dtype",))
    check_free(out, kind, recipe)
    longest = max(len(sample.ids) for sample in samples)
    needs = needs_of(kind, recipe, folder, place, longest=longest)
    show = plain_console()
    _head(show, folder, out, needs, place.line, ())
    show.print(
        f"samples: {len(samples):,}, the longest of {longest:,} tokens; {batch} a step, {counted(steps, 'step')}"
    )
    _memory(show, needs)
    check_fits(needs, out)
    warn_of_rate(kind, recipe, needs.parameters)
    show.print("measuring an update …", style="dim")
    measured = measure_updates(recipe, folder, place, samples, batch)
    if kind == "dpo":  # each side is computed once more, forward alone: a third of forward and backward
        measured = replace(measured, train_seconds=measured.train_seconds * 4 / 3)
    _print_time(show, measured, steps)


def _head(
    show: Console, folder: Path | str, out: Path, needs: Needs, place: str, derived: Iterable[DerivedLength | str]
) -> None:
    trained = "" if needs.trained == needs.parameters else f", {needs.trained / 1e6:,.2f} M of adapters trained"
    show.print(f"model: {folder}, {needs.parameters / 1e6:,.1f} M parameters{trained}")
    show.print(place)
    disk = [f"{gib(needs.disk)} of disk at most"] if needs.disk else []
    if needs.rollouts:
        disk.append(f"about {gib(needs.rollouts)} for rollouts, if all are long")
    show.print(f"out: {out}, {', and '.join(disk)}")
    _print_lengths(show, derived)


def _print_lengths(show: Console, derived: Iterable[DerivedLength | str]) -> None:
    """Print the lengths that the recipe leaves open, as model and tasks set them."""
    for one in derived:
        show.print(Text.assemble(("derived: ", "bold"), str(one)))


def _task_count(tasks: TaskSet) -> str:
    """Number of tasks, if known: a family may be endless."""
    identity = getattr(tasks, "identity", None)
    if not identity:
        return ""
    sources = identity["sources"]
    train, held = (sum(source.get(kind, 0) for source in sources) for kind in ("train", "evaluation"))
    return f", {train:,} to train on and {held:,} held out"


def _memory(show: Console, needs: Needs, room: int | None = None) -> None:
    grid = Table(box=box.HORIZONTALS, pad_edge=False, show_header=False)
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim", overflow="fold")
    for row in table(needs.memory):
        grid.add_row(*row)
    free = room or free_on(needs.device)
    known = "" if free is None else f"{gib(free)} are free"
    grid.add_section()
    grid.add_row(Text("peak, about", "bold"), Text(gib(needs.peak), "bold"), known)
    show.print(grid)


def _eval_seconds(show: Console, recipe: Recipe, stage: Stage, measured: Measurement, problems: int) -> float:
    """Seconds of the evaluations in a stage, timed as training rollouts."""
    section = recipe.evaluate
    steps = range(stage.before + 1, stage.last + 1) if section.every else ()
    count = sum(step % section.every == 0 or step == recipe.rl.steps for step in steps)
    if not count:
        return 0.0
    rollouts = problems * section.every_samples
    made = stage.recipe.rl.prompts * stage.recipe.select.made(stage.recipe.rl.group)
    each = (measured.rollout_seconds or 0.0) * rollouts / made
    show.print(f"evaluations on the way: {count} of {counted(rollouts, 'rollout')}, {each:,.1f} s each")
    return count * each


def _print_time(show: Console, measured: Measurement, steps: int, besides: float = 0.0) -> float:
    """Seconds of all steps and of what is done besides them."""
    if measured.rollout_seconds is not None:
        most = "" if measured.whole else " at most, if every rollout used up rollout.max_tokens"
        show.print(
            f"rollouts: {measured.rollout_seconds:,.1f} s a step{most} ({measured.sampled_per_second:,.0f} sampled "
            "tokens/s)"
        )
    if measured.scoring_seconds:
        show.print(f"forward passes before the updates: {measured.scoring_seconds:,.1f} s a step")
    show.print(
        f"updates: {measured.train_seconds:,.1f} s a step ({measured.tokens:,} tokens, "
        f"{measured.trained_per_second:,.0f} tokens/s)"
    )
    total = steps * measured.step_seconds + besides
    show.print(
        Text(f"{counted(steps, 'step')}: {format_duration(total)} to {format_duration(SHARED * total)}", "bold"),
        Text(f"; measured peak {gib(measured.peak)}"),
        sep="",
    )
    return total


def _advise(show: Console, seconds: float) -> None:
    """Say what to lower where a plan takes over a day."""
    if seconds > DAY:
        keys = "rl.steps, rl.prompts, rl.group, rollout.max_tokens"
        show.print(f"that is over a day: lower {keys}, or take a smaller model, lora.rank=16 or compute.dtype=bfloat16")


def _vocabulary(folder: Path) -> int:
    return int(load_config(folder).get_text_config().vocab_size)
