"""Evaluation of a checkpoint on held-out problems in one or two settings. Purification is off unless the recipe's
`evaluate.repair` turns it on."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from retcon.build import (
    build_engine_chat,
    build_evaluation_context,
    build_plain_sampling,
    build_policy,
    build_sampling,
    build_tasks,
    open_context,
    open_graders,
    resolve_lengths,
    with_evaluation_repair,
)
from retcon.config.schema import Recipe
from retcon.core.concurrency import cancel_all, gather_or_cancel
from retcon.core.errors import CheckpointError, RecipeError, SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.engine.types import Generator, HasStatistics, SamplingParams
from retcon.evaluate.card import write_card
from retcon.evaluate.result import (
    PartialFile,
    PartialResults,
    Result,
    Setting,
    partial,
    read_partial,
    read_result,
    score,
    setting_names,
    write_result,
)
from retcon.planning.rollouts import check_rollouts_fit
from retcon.rollout.context import MAX_LOST_SHARE, Faults
from retcon.rollout.lengths import check_lengths
from retcon.runs.folder import as_now, is_immaterial
from retcon.store import jsonl
from retcon.store.compression import SUFFIXES
from retcon.store.fingerprint import fingerprint, template_fingerprint
from retcon.tasks.benchmarks import BENCHMARKS
from retcon.tasks.grading.registry import kind_of
from retcon.tasks.registry import TaskSet, evaluation_tasks, problems_of
from retcon.tasks.types import Task, fingerprint_of

if TYPE_CHECKING:
    from retcon.chat.chat import Chat
    from retcon.models.devices import Placement

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Rollouts done, of how many, over all settings."""

OnPlace = Callable[["Placement"], None]
"""Called with where the model computes, before it does."""

RELEVANT = ("run", "model", "compute", "engine", "task", "rollout", "sandbox", "evaluate")
"""Sections of a recipe that an evaluation depends on; with repairs also `repair`."""

AT_ONCE = 4096
"""Most rollouts at once, unless servers take more; waiting ones would hold their prompts in memory."""


def settings_of(recipe: Recipe) -> dict[str, SamplingParams]:
    """Return the settings by name: [rollout]'s own, or two at T = 1, or one for top-p 1."""
    if recipe.evaluate.sampling == "rollout":
        return {"rollout": build_sampling(recipe)}
    plain = build_plain_sampling(recipe)
    second = replace(plain, top_p=recipe.evaluate.top_p)
    return dict(zip(setting_names(second.top_p), (plain, second), strict=False))


def run_evaluation(
    recipe: Recipe,
    checkpoint: Path,
    out: Path,
    *,
    on_progress: Progress | None = None,
    on_tokens: Callable[[int], None] | None = None,
    on_place: OnPlace | None = None,
    on_ready: Callable[[], None] = lambda: None,
    protocol: str = "",
) -> Path:
    """Run the evaluation of a recipe; return the path of `result.json`. Rollouts are in `trajectories-<setting>.jsonl`.

    A setting that `out` already holds is kept, and so are the finished problems of one that was interrupted or measured
    on fewer problems. checkpoint: the model's folder; for a remote engine, the one whose tokenizer counts. on_tokens:
    gets every second how many tokens were sampled. protocol: the name of its settings, for the card.

    Raises CheckpointError for a missing or broken checkpoint and for an `out` that holds another evaluation, be it of
    other weights or chat templates in the same folder, or of other problems in the same file; RecordError where `out`
    cannot be written to; RecipeError where there is no problem, or where prompts leave no room to answer,
    SandboxUnavailable where more than one rollout in twenty was lost, EngineError for a remote engine that is down,
    MissingExtra without torch.
    """
    recipe.task.check_rollouts(with_evaluation_repair(recipe))
    family = build_tasks(recipe, checkpoint)
    recipe, _ = resolve_lengths(recipe, checkpoint, family)
    tasks = problems_of(recipe, family)
    result = result_in(recipe, checkpoint, out, tasks, family)
    result = msgspec.structs.replace(result, about=result.about or _about(recipe, tasks, protocol))
    settings = settings_of(recipe)
    missing = {name: params for name, params in settings.items() if not _is_measured(out, result, name, len(tasks))}
    for name in settings.keys() - missing.keys():
        with suppress(OSError):  # a killed process may have left it
            partial(_trajectories(out, name)).unlink(missing_ok=True)
    if not missing:
        return out / "result.json"
    chat = build_engine_chat(recipe, checkpoint, family)
    result.about["template"] = _template(chat, result)
    check_lengths(tasks, chat, recipe.rollout.max_tokens, "problems")
    section = recipe.evaluate.model_copy(update={"problems": max(1, len(tasks))})
    on_ready()
    check_rollouts_fit(recipe.model_copy(update={"evaluate": section}), checkpoint, out)
    _make_folder(out)
    for name in missing.keys() & result.settings.keys():  # measured on fewer problems
        with PartialFile(_trajectories(out, name), result.without_settings()) as begun:
            begun.take(result.settings[name], jsonl.read(_rollout_files(out, name)[0]))
    result = msgspec.structs.replace(result, settings={k: v for k, v in result.settings.items() if k not in missing})
    engine = build_policy(recipe, checkpoint, chat, on_place)
    count = len(tasks) * recipe.evaluate.samples
    with asyncio.Runner() as runner:  # one loop, as a harness may keep state that is bound to it
        for number, (name, params) in enumerate(missing.items(), len(settings) - len(missing)):
            before = count * number

            def tell(done: int, before: int = before) -> None:
                if on_progress is not None:
                    on_progress(before + done, count * len(settings))

            faults = Faults()
            with PartialFile(_trajectories(out, name), result.without_settings()) as begun:
                _check_not_begun(result, recipe, out, name, tasks, family)
                work = evaluate(
                    recipe, tasks, name=name, params=params, engine=engine, chat=chat, family=family, on_progress=tell,
                    faults=faults, begun=begun,
                )  # fmt: skip
                groups, setting = runner.run(_watched(work, engine, on_tokens))
                if setting.lost > MAX_LOST_SHARE * count:
                    raise SandboxUnavailable(
                        f"{setting.lost} of {count} rollouts were lost to faults of the sandbox, the engine or a grader"
                        f"{faults.why}, too many for an evaluation; see `retcon doctor`, then run the same command "
                        "again"
                    )
                jsonl.write(_trajectories(out, name), [t for group in groups for t in group])
                result = result.with_setting(name, setting)
                write_result(out / "result.json", result)
                write_card(out, result)
                begun.remove()
            tell(count)
    return out / "result.json"


async def _watched(work: Awaitable[T], engine: Generator, on_tokens: Callable[[int], None] | None) -> T:
    """Await `work`; meanwhile `on_tokens` gets every second how many tokens the engine has sampled."""

    async def watch(tell: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(1)
            tell(getattr(engine.stats, "generated", 0) if isinstance(engine, HasStatistics) else 0)

    watching = [asyncio.create_task(watch(on_tokens))] if on_tokens is not None else []
    try:
        return await work
    finally:
        await cancel_all(watching)


async def evaluate(
    recipe: Recipe,
    tasks: list[Task],
    *,
    name: str,
    params: SamplingParams,
    engine: Generator,
    chat: Chat,
    on_progress: Callable[[int], None],
    family: TaskSet | None = None,
    faults: Faults | None = None,
    begun: PartialResults | None = None,
) -> tuple[list[list[Trajectory]], Setting]:
    """Evaluate one setting; return each task's graded rollouts and the figures. family: of the tasks, None for the
    recipe's. faults: collects why rollouts are lost. begun: problems done so far, to which new ones are added.

    The rollouts' seeds depend on the evaluation's seed, the setting's name and the problem: equal for every checkpoint.
    """
    from retcon.rollout.group import rollout_group

    begun = begun or PartialResults()
    done = sum(map(len, begun.groups.values()))
    async with open_context(recipe, engine, chat) as context, open_graders(family or build_tasks(recipe)) as graders:

        def graded(task: Task, trajectory: Trajectory) -> Trajectory | Awaitable[Trajectory]:
            nonlocal done
            done += 1
            on_progress(done)
            return graders.judged.grade(task, trajectory)

        measured = replace(build_evaluation_context(recipe, context, params), faults=faults or context.faults)
        seed = derive("evaluation", recipe.evaluate.seed, name)
        count = recipe.evaluate.samples
        at_once = max(AT_ONCE, 2 * recipe.engine.requests())  # while some ask the servers, others run their tools
        room = asyncio.Semaphore(max(1, at_once // count))

        async def group_of(task: Task) -> list[Trajectory]:
            if task.id in begun.groups:
                return begun.groups[task.id]
            async with room:
                started = time.monotonic()
                group = await rollout_group(task, measured, count=count, seed=seed, step=0, grade=graded)
            begun.add(task.id, group, round(time.monotonic() - started, 3))
            return group

        groups = await gather_or_cancel(group_of(task) for task in tasks)
    cost = begun.meter.read()
    setting = score(
        zip((t.id for t in tasks), groups, strict=True),
        temperature=params.temperature,
        top_p=params.top_p,
        cpu_s=round(cost.cpu_s, 2),
        wall_s=round(cost.wall_s, 2),
        seconds=begun.seconds,
    )
    rest = {"top_k": float(params.top_k), "min_p": params.min_p}
    return groups, msgspec.structs.replace(setting, sampling={k: v for k, v in rest.items() if v})


def result_in(
    recipe: Recipe, checkpoint: Path, out: Path, tasks: Sequence[Task], family: TaskSet | None = None
) -> Result:
    """Return the result that `out` holds so far, else a new one; writes nothing. tasks: to evaluate on. family: of the
    tasks, whose system prompt the user's class may set. Raises CheckpointError where `out` holds another recipe's,
    checkpoint's or problem set's result, or is no evaluation's folder."""
    sections = RELEVANT if recipe.evaluate.repair == "none" else (*RELEVANT, "repair")
    relevant = {name: section for name, section in recipe.model_dump(mode="json").items() if name in sections}
    held = read_result(out / "result.json") if (out / "result.json").exists() else None
    over = held is not None and is_complete(held, recipe, out, len(tasks))
    inputs = {**_inputs(recipe, checkpoint, tasks, family), **_harness_code(recipe, over)}
    new = Result(recipe.engine.subject(checkpoint), relevant, {}, inputs=inputs)
    if held is None:
        _check_own_folder(out, recipe)
    begun = (read_partial(partial(_trajectories(out, name))) for name in settings_of(recipe))
    olds = [_with_more_problems(old, recipe, tasks, family) for old in (held, *begun) if old]
    for old in olds:
        _check_same_evaluation(old, new, recipe, out)
    return msgspec.structs.replace(olds[0], checkpoint=new.checkpoint) if held else new


def is_complete(result: Result, recipe: Recipe, out: Path, count: int) -> bool:
    """Whether `out` holds all settings of the recipe's evaluation on `count` problems."""
    return all(_is_measured(out, result, name, count) for name in settings_of(recipe))


def _with_more_problems(old: Result, recipe: Recipe, tasks: Sequence[Task], family: TaskSet | None) -> Result:
    """`old` extended to all `tasks`, if its problems are what its seed draws for a smaller number."""
    section = old.recipe.get("evaluate", {})
    count = section.get("problems")
    if family is None or not isinstance(count, int) or count >= recipe.evaluate.problems:
        return old
    fewer = evaluation_tasks(family, count, recipe.evaluate.seed)
    if old.inputs.get("problems") != fingerprint_of(fewer) or not {t.id for t in fewer} <= {t.id for t in tasks}:
        return old
    return msgspec.structs.replace(
        old,
        recipe={**old.recipe, "evaluate": {**section, "problems": recipe.evaluate.problems}},
        inputs={**old.inputs, "problems": fingerprint_of(tasks)},
    )


def _check_not_begun(
    result: Result, recipe: Recipe, out: Path, name: str, tasks: Sequence[Task] = (), family: TaskSet | None = None
) -> None:
    """Raise CheckpointError where another evaluation began, or ended, since the first check."""
    done = read_result(out / "result.json") if (out / "result.json").exists() else None
    for old in (done, read_partial(partial(_trajectories(out, name)))):
        if old is not None:
            _check_same_evaluation(_with_more_problems(old, recipe, tasks, family), result, recipe, out)


def _check_same_evaluation(old: Result, new: Result, recipe: Recipe, out: Path) -> None:
    """Check that two results are of one evaluation. recipe: of the new one. Raises CheckpointError."""
    weights = old.inputs.get("weights")
    if old.checkpoint != new.checkpoint and (weights is None or weights != new.inputs.get("weights")):  # else: moved
        raise CheckpointError(f"{out} evaluates {old.checkpoint}, not {new.checkpoint}: choose another --out")
    then = {section: keys for section, keys in as_now(old.recipe, recipe).items() if section in old.recipe}
    changed = [
        f"{section}.{key} = {then.get(section, {}).get(key)!r}, now {value!r}"
        for section, keys in new.recipe.items()
        for key, value in keys.items()
        if then.get(section, {}).get(key) != value and not is_immaterial(section, then.get(section, {}), key, value)
    ]
    if changed:
        raise CheckpointError(f"{out} holds an evaluation with {'; '.join(changed)}: choose another --out")
    for name, value in new.inputs.items():
        if (was := old.inputs.get(name, value)) != value:
            raise CheckpointError(
                f"{out} holds an evaluation of other {name} ({was}, now {value}): choose another --out"
            )


def _about(recipe: Recipe, tasks: Sequence[Task], protocol: str) -> dict[str, Any]:
    """Facts for the card besides keys: graders with their versions, the benchmark, packages."""
    named = sorted({name for task in tasks if isinstance(name := task.meta.get("grader"), str)})
    name = str(getattr(recipe.task, "benchmark", ""))
    one = BENCHMARKS.find(name) if name else None
    keep = ("name", "hub", "revision", "file", "size", "licence", "contamination")
    return {
        "protocol": protocol,
        "tasks": str(getattr(recipe.task, "name", "") or getattr(recipe.task, "path", "") or recipe.task.kind),
        "benchmark": {key: getattr(one, key) for key in keep} if one else {},
        "prompt": str(getattr(recipe.task, "prompt", "") or (one.prompt if one else "")),
        "graders": {name: _versions("retcon-rl", *kind_of(name).uses) for name in named},
        "versions": {"python": platform.python_version(), **_versions("retcon-rl", "torch", "transformers")},
    }


def _versions(*packages: str) -> dict[str, str]:
    """The versions of installed packages."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _template(chat: Chat, result: Result) -> str:
    """Prompting of the model: the family of its calls, and its template's fingerprint if available."""
    return ", ".join(filter(None, (chat.family.name, result.inputs.get("chat templates", ""))))


def _inputs(recipe: Recipe, checkpoint: Path, tasks: Sequence[Task], family: TaskSet | None) -> dict[str, str]:
    """Fingerprints of the problems, the default system prompt and, if available, weights and chat templates."""
    found = {"problems": fingerprint_of(tasks)}
    if family is not None:
        found["system prompts"] = fingerprint_of([Task("", "", "", family.system)])
    if checkpoint.is_dir() and recipe.engine.subject(checkpoint) == str(checkpoint.resolve()):
        found |= {"weights": fingerprint(checkpoint), "chat templates": template_fingerprint(checkpoint)}
    return found


def _harness_code(recipe: Recipe, over: bool) -> dict[str, str]:
    """Fingerprint of a harness's file. over: whether all is measured, so that the file may be gone. Raises
    RecipeError."""
    from retcon.serve.harness import harness_fingerprint

    try:
        return {"harness code": harness_fingerprint(recipe.rollout.harness)} if recipe.rollout.harness else {}
    except RecipeError:
        if over:
            return {}
        raise


def _check_own_folder(out: Path, recipe: Recipe) -> None:
    """Check that a folder holds files of evaluations alone. Raises CheckpointError."""
    files = [_trajectories(out, name) for name in settings_of(recipe)]
    own = {path.name for file in files for path in (file, partial(file))}
    try:
        inside = out.iterdir() if out.exists() else ()
        foreign = sorted(p.name for p in inside if not p.name.startswith(".") and p.name not in own)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be read: {error}") from error
    if foreign:
        raise CheckpointError(
            f"{out} holds {foreign[0]}, and no result.json: it is not an evaluation's folder; choose another --out"
        )


def _make_folder(out: Path) -> None:
    """Make the folder. Raises CheckpointError where that fails or it is not writable."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be made: {error}") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise CheckpointError(f"{out} cannot be written to: choose another --out")


def _is_measured(out: Path, result: Result, name: str, count: int) -> bool:
    """Whether a setting is measured on `count` problems."""
    return name in result.settings and len(result.settings[name].problems) >= count and bool(_rollout_files(out, name))


def _rollout_files(out: Path, name: str) -> list[Path]:
    """The file of a setting's rollouts, where there is one: it may have been compressed since."""
    file = _trajectories(out, name)
    return [one for suffix in ("", *SUFFIXES) if (one := file.with_name(file.name + suffix)).is_file()]


def _trajectories(out: Path, name: str) -> Path:
    return out / f"trajectories-{name}.jsonl"
