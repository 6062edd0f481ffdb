"""The commands that evaluate: `eval`, `eval-compare`, `benchmarks`, `difficulty`, `audit` and `regrade`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from retcon.cli.arguments import (
    DryRun,
    Model,
    ModelOrURL,
    Out,
    check_useful,
    command_line,
    complete_measured,
    complete_word,
    interruptible,
    need_training,
    overrides_of,
    plain_console,
    ready,
    split_overrides,
)
from retcon.core.errors import MissingExtra, RecipeError, nearest
from retcon.core.installing import how_to_install
from retcon.core.texts import counted, is_url
from retcon.runs.progress import print_line, print_place, show_progress, show_rollouts

if TYPE_CHECKING:
    from rich.table import Table

    from retcon.config.schema import Recipe, Stage
    from retcon.core.types import Trajectory
    from retcon.store.pass_rates import PassRate
    from retcon.tasks.data.settings import FileTaskSettings
    from retcon.tasks.grading.regrade import RegradeResult


SETTINGS: Mapping[str, tuple[str, ...]] = {
    # CLEANER (arXiv 2601.15141): table 6, lengths of table 5, pass@1 and pass@16 of table 2
    "cleaner": ("temperature=1.0", "top_p=0.6", "max_tokens=23040", "max_response_tokens=20480", "max_turns=16",
                "evaluate.samples=16"),
    # rStar2-Agent (arXiv 2508.20722), section 5.1; lengths of its last stage
    "rstar2": ("temperature=0.6", "top_p=1.0", "max_tokens=32768", "max_response_tokens=30720", "max_turns=30",
               "evaluate.samples=16"),
    # DemyAgent (arXiv 2510.11701), its script: val_kwargs, n_resp_per_prompt_val
    "demyagent": ("temperature=1.0", "top_p=0.6", "max_tokens=23040", "max_response_tokens=20480", "max_turns=16",
                  "evaluate.samples=32"),
    # LiveCodeBench's runner (github.com/LiveCodeBench, 28fef95): n, temperature, top_p, max_tokens
    "livecodebench": ("temperature=0.2", "top_p=0.95", "max_response_tokens=2000", "evaluate.samples=10"),
}  # fmt: skip
"""Published ways of measuring: keys of [rollout], unless they name another section."""
Mode = Literal["on", "off", "both"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One evaluation of a command: a model on one benchmark, with tools or without.

    benchmark: "" for other data. settings: their name, "" where none was given.
    """

    model: str
    benchmark: str
    tools: str
    settings: str
    recipe: Recipe
    folder: Path
    out: Path


def evaluate(
    checkpoint: ModelOrURL,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BENCHMARK… MODEL… RECIPE KEY=VALUE",
            autocompletion=complete_measured,
            help="Benchmarks by name ([bold]retcon benchmarks[/]); further models; a recipe (its sections task, "
            "rollout, sandbox and evaluate matter); changes to it.",
        ),
    ] = None,
    *,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Problems to evaluate on instead of the recipe's, given like task.path (docs/data/problems.md); may "
            "be repeated; task.columns=…, task.grader=… say how they are read and graded.",
        ),
    ] = None,
    benchmark_file: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmark-file",
            metavar="NAME=FILE",
            help="A benchmark's problems in a local file of its published layout; may be repeated.",
        ),
    ] = None,
    settings: Annotated[
        str,
        typer.Option(
            "--settings",
            metavar="NAME",
            help=f"Sampling, lengths and rollouts of a paper: {', '.join(SETTINGS)}. By default T = 1 with top-p 1.",
            show_default=False,
        ),
    ] = "",
    tools: Annotated[
        Mode | None,
        typer.Option("--tools", help="With the recipe's tools, without any, or both ways, compared by problem."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Problems of each benchmark, drawn by evaluate.seed.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Repair failed turns as they happen, as the recipe's [bold]repair[/] section says, or else by SAAR.",
        ),
    ] = False,
    inspect: Annotated[
        bool,
        typer.Option("--inspect", help="Also write .eval logs for `inspect view`; needs the extra inspect."),
    ] = False,
    out: Out = Path("runs/eval"),
    dry_run: DryRun = False,
) -> None:
    """Measure models on benchmarks or your own problems. Purification is off by default."""
    from retcon.models.locating import locate

    files = _benchmark_files(benchmark_file or [])
    asked = sort_words(words or [])
    benchmarks = list(dict.fromkeys((*asked.benchmarks, *files)))
    check_useful("--data", bool(data and benchmarks), f"{benchmarks[:1]} names the problems: leave one of them out")
    if settings not in ("", *SETTINGS):
        known = ", ".join(SETTINGS)
        raise RecipeError(f"no settings '{settings}'{nearest(settings, SETTINGS)}; there are: {known}")
    models = (checkpoint, *asked.models)
    apart = bool(benchmarks or tools == "both" or len(models) > 1)
    jobs: list[Measurement] = []
    for model in models:
        for name in benchmarks or [""]:
            for mode in ("off", "on") if tools == "both" else (tools or "",):
                given = _benchmark_overrides(name, files.get(name, "")) if name else []
                given += _data_overrides(data, asked.recipe, asked.overrides) if data else []
                given += _option_overrides(settings, mode, limit, bool(name))
                recipe = _recipe_of(model, asked.recipe, [*given, *asked.overrides], repair)
                folder = locate(recipe.model.path if is_url(model) else model)
                place = out / _slug(model) / f"{name or 'data'}{'-no-tools' * (mode == 'off')}" if apart else out
                shown = mode or ("on" if recipe.rollout.tools else "off")
                jobs.append(Measurement(model, name, shown, settings, recipe, folder, place))
    if all(job.recipe.evaluate.repair == "none" for job in jobs):
        for override in overrides_of(asked.overrides, ["repair"]):
            print_line(f"{override}: without --repair an evaluation repairs nothing")
    if dry_run or any(job.recipe.engine.in_process for job in jobs):
        need_training()
    if inspect and find_spec("inspect_ai") is None:
        raise MissingExtra(f"--inspect needs the inspect_ai package: {how_to_install('inspect')}")
    if len(jobs) > 1:  # a fault in one is reported before another is measured
        for recipe in {job.benchmark: job.recipe for job in jobs}.values():
            recipe.task.build()
    for job in jobs:
        if apart:
            print_line(f"{job.model}: {job.benchmark or 'data'}, tools {job.tools}")
        _measure(job, dry_run)
        if inspect and not dry_run:
            _print_inspect_logs(job)
    if tools == "both" and not dry_run:
        for off, on in zip(jobs[::2], jobs[1::2], strict=True):
            _print_comparison(off.out, on.out, ("tools off", "tools on"), f"{on.model} {on.benchmark}")


def _recipe_of(model: str, name: str | None, given: Sequence[str], repair: bool) -> Recipe:
    """The recipe of an evaluation of this model. Raises RecipeError."""
    from retcon.config.load import apply_override, load_recipe

    if is_url(model):
        given = ["engine.kind=openai", f"engine.url={model}", *given]
    recipe = load_recipe(name, given)
    if repair:
        from retcon.build import build_repair

        kind = "saar" if build_repair(recipe) is None else recipe.repair.kind
        recipe = apply_override(recipe, f"evaluate.repair={kind}")
    return recipe


def _measure(job: Measurement, dry_run: bool) -> None:
    """Run or plan one evaluation, and print its results."""
    if dry_run:
        from retcon.cli.dry_run import plan_evaluation

        plan_evaluation(job.recipe, job.folder, job.out)
        return
    from retcon.evaluate.result import read_result
    from retcon.evaluate.runner import run_evaluation, settings_of

    kept = f"the problems that are measured are kept in {job.out}; the same command continues"
    with interruptible(kept), show_rollouts(f"evaluating {job.model}") as tell:
        path = run_evaluation(
            job.recipe,
            job.folder,
            job.out,
            on_progress=tell,
            on_tokens=tell.sampled,
            on_place=print_place,
            on_ready=ready(job.recipe),
            protocol=job.settings,
        )
    from retcon.report.tables import describe_cut_off, result_table, result_title

    console, result = plain_console(), read_result(path)
    console.print(result_title(result), style="bold", soft_wrap=True)
    console.print(result_table(result), soft_wrap=False)
    if warning := describe_cut_off(result):
        console.print(warning, style="yellow")
    rollouts = job.out / f"trajectories-{next(iter(settings_of(job.recipe)))}.jsonl"
    console.print(f"result: {path}\ntry: {command_line('retcon', 'show', rollouts)}")


def _print_inspect_logs(job: Measurement) -> None:
    """Write a finished evaluation's logs for Inspect, and say where."""
    from retcon.build import build_tasks
    from retcon.report.inspect_log import write_inspect_logs
    from retcon.tasks.registry import problems_of

    for path in write_inspect_logs(job.out, problems_of(job.recipe, build_tasks(job.recipe, job.folder))):
        print_line(f"log: {path}\ntry: {command_line('inspect', 'view', '--log-dir', path.parent)}")


def _print_comparison(
    first: Path, second: Path, names: tuple[str, str], title: str = "", price: tuple[float, float] | None = None
) -> None:
    """Print two folders' evaluations side by side."""
    from retcon.evaluate.card import compare_evaluations
    from retcon.report.tables import comparison_sheet

    console = plain_console()
    for found in compare_evaluations(first, second, price):
        sheet = comparison_sheet(found, names)
        for table in replace(sheet, title=f"{title} {sheet.title}".strip()).tables(console):
            console.print(table)


def eval_compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A folder of `retcon eval`, or one that holds several.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another, on the same problems.")],
    *,
    price: Annotated[
        str,
        typer.Option("--price", metavar="IN,OUT", help="Dollars for a million tokens read and written, for the cost."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures, as JSON.")] = False,
) -> None:
    """Compare two evaluations problem by problem: pass rates, tokens, calls, failed calls, time and cost."""
    from retcon.evaluate.card import compare_evaluations

    costs: tuple[float, float] | None = None
    if price:
        try:
            read, written = map(float, price.split(","))
            costs = (read, written)
        except ValueError:
            why = f"'{price}': write two numbers, such as 0.15,0.60"
            raise typer.BadParameter(why, param_hint="--price") from None
    if as_json:
        found = list(compare_evaluations(first, second, costs))
        typer.echo(json.dumps([asdict(one) for one in found], indent=2, default=str))
        return
    names = (first.name, second.name)
    if first.name == second.name:  # such as `eval`, of two runs
        folder = os.path.commonpath((first.absolute(), second.absolute()))
        names = (os.path.relpath(first, folder), os.path.relpath(second, folder))
    _print_comparison(first, second, names, "", costs)


@dataclass(frozen=True, slots=True)
class EvalWords:
    """Words after an evaluation's first model, sorted."""

    benchmarks: tuple[str, ...]
    models: tuple[str, ...]
    recipe: str | None
    overrides: tuple[str, ...]


def sort_words(words: Sequence[str]) -> EvalWords:
    """Sort words into benchmarks, models, recipe and overrides. Raises RecipeError for any other word."""
    from retcon.config.load import find_recipe, shipped_recipes
    from retcon.models.locating import BASE, PACKAGED, is_hub_name
    from retcon.tasks.benchmarks import BENCHMARKS

    shipped, names = shipped_recipes(), (BASE.name, *PACKAGED)
    folders = {name.partition("/")[0] for name in shipped if "/" in name}
    benchmarks: list[str] = []
    models: list[str] = []
    recipes: list[str] = []
    overrides: list[str] = []
    for word in words:
        if is_url(word):
            models.append(word)
        elif "=" in word:
            overrides.append(word)
        elif word in BENCHMARKS.names or re.fullmatch(r"[\w.]+:\w+", word):
            BENCHMARKS.find(word)
            benchmarks.append(word)
        elif overrides:
            split_overrides([overrides[0], word])  # which says what is wrong with it
        elif word in shipped or word.endswith(".toml"):
            recipes.append(word)
        elif Path(word).exists() or word in names or (is_hub_name(word) and word.partition("/")[0] not in folders):
            models.append(word)
        else:
            hint = nearest(word, BENCHMARKS.names)
            if not hint:
                find_recipe(word)
            raise RecipeError(f"'{word}'{hint} is not a benchmark (`retcon benchmarks` lists them), model or recipe")
    if len(recipes) > 1:
        raise RecipeError(f"an evaluation has one recipe, and {' and '.join(recipes)} are two: leave one out")
    return EvalWords(tuple(benchmarks), tuple(models), recipes[0] if recipes else None, tuple(overrides))


def _benchmark_files(given: Sequence[str]) -> dict[str, str]:
    """Name to file, from `--benchmark-file`. Raises RecipeError."""
    from retcon.tasks.benchmarks import BENCHMARKS

    found: dict[str, str] = {}
    for one in given:
        name, equals, file = one.partition("=")
        if not equals or not file:
            raise typer.BadParameter(f"'{one}': write it as NAME=FILE", param_hint="--benchmark-file")
        BENCHMARKS.find(name)
        found[name] = file
    return found


def _benchmark_overrides(name: str, file: str) -> list[str]:
    """Overrides that evaluate a recipe on all problems of a benchmark."""
    from retcon.config.load import toml_of
    from retcon.tasks.registry import EVERY

    return [
        "task.kind=file", f"task.benchmark={toml_of(name)}", f"task.path={toml_of(file)}", "task.sources=[]",
        *(f'task.{key}=""' for key in ("split", "subset", "revision", "evaluation_path", "evaluation_split")),
        "task.evaluation_share=1", "task.duplicates=keep", "task.overlap=allow", f"evaluate.problems={EVERY}",
        f"evaluate.samples={SAMPLES}",
    ]  # fmt: skip


def _option_overrides(settings: str, mode: str, limit: int | None, named: bool) -> list[str]:
    """Overrides for --settings, --tools and --limit. named: on a benchmark."""
    given = ["evaluate.sampling=rollout"] if settings or named else []
    given += [key if "." in key.partition("=")[0] else f"rollout.{key}" for key in SETTINGS.get(settings, ())]
    given += ["rollout.tools=[]"] if mode == "off" else []
    return given + ([f"evaluate.problems={limit}"] if limit is not None else [])


def _slug(model: str) -> str:
    """A folder's name for a model."""
    return re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"


def benchmarks(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that is known of them, as JSON.")] = False,
) -> None:
    """List the standard benchmarks that `retcon eval` knows by name."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from retcon.tasks.benchmarks import BENCHMARKS

    if as_json:
        typer.echo(json.dumps([asdict(one) for one in BENCHMARKS.all()], indent=2))
        return
    table = Table(box=box.HORIZONTALS, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("problems", justify="right")
    table.add_column("from")
    table.add_column("note")
    for one in BENCHMARKS.all():
        takes = "; ".join(filter(None, ("gated: takes an account" * one.gated, one.needs and f"takes {one.needs}")))
        note = "; ".join(filter(None, (one.contamination, takes)))
        table.add_row(one.name, f"{one.size:,}", f"{one.hub}\n{one.source}\n{one.licence}", note)
    Console(highlight=False, markup=False).print(table)
    Console(highlight=False, markup=False, soft_wrap=True).print(
        "try: retcon eval MODEL gsm8k math500 --limit 100   (--benchmark-file NAME=FILE without the hub)"
    )


SAMPLES = 4
"""Rollouts of a problem where files are named and the number is not: sets are large, and more tell little more."""


def _data_overrides(paths: Sequence[str], recipe: str | None, overrides: Sequence[str]) -> list[str]:
    """Overrides for `--data`: all rows of these files are evaluated on, unless a number is given. Keys about the
    recipe's own data are reset: which rows, and for a hub's data set subset and revision, unless the same data are
    named."""
    from retcon.config.load import load_recipe, toml_of
    from retcon.tasks.data.rows import origin_of
    from retcon.tasks.registry import EVERY

    where = f"task.path={toml_of(paths[0])}"
    if len(paths) > 1:
        where = f"task.sources={toml_of(list(paths))}"
    keys = {"evaluate.problems": EVERY, "evaluate.samples": SAMPLES}
    given = {override.partition("=")[0].strip() for override in overrides}
    settings = load_recipe(recipe)
    given |= {f"evaluate.{key}" for key in settings.evaluate.model_fields_set}
    data: set[str] = set()
    if settings.task.kind == "file":
        task = cast("FileTaskSettings", settings.task)
        data = {task.path, task.evaluation_path, *(source.path for source in task.sources)} - {""}
    same = data.issuperset(paths) and any(origin_of(path) == "hub" for path in paths)
    own = () if not data else ("split",) if same else ("split", "subset", "revision")
    return [
        "task.kind=file", *(f'task.{key}=""' for key in own), 'task.path=""', "task.sources=[]",
        'task.evaluation_path=""', 'task.evaluation_split=""', "task.evaluation_share=1", where,
        *(f"{key}={value}" for key, value in keys.items() if key not in given),
    ]  # fmt: skip


def difficulty(
    checkpoint: Model,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            autocompletion=complete_word,
            help="The recipe of the planned run (its task set, run.seed, rollout and sandbox matter), and changes.",
        ),
    ] = None,
    *,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="How many of the training's tasks to measure, from the first on.")
    ],
    rollouts: Annotated[int, typer.Option("--rollouts", min=1, help="Rollouts per task.")] = 8,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="Of a recipe with stages, the one whose tasks and limits count, by name or number; without it, the "
            "recipe's own do.",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File that rates are added to as they are measured.")
    ] = Path("runs/pass_rates.jsonl"),
) -> None:
    """Measure pass rates of training tasks, by which select.pass_rates selects."""
    from retcon.cli.arguments import READS
    from retcon.config.load import load_recipe
    from retcon.config.schema import find_stage
    from retcon.models.locating import locate
    from retcon.store.whole import check_regular_file

    check_regular_file(out, "--out")
    name, overrides = split_overrides(words or [])
    recipe = load_recipe(name, overrides, reads=READS["difficulty"])
    of_run = find_stage(recipe, stage, f"--stage {stage}") if stage else None
    if of_run is not None:
        recipe = of_run.recipe
    folder = locate(checkpoint)
    if recipe.engine.in_process:
        need_training()
    from retcon.evaluate.difficulty import run_difficulty

    kept = f"what was measured is kept in {out}; the same command measures the rest"
    with interruptible(kept), show_progress(f"measuring with {checkpoint}") as tell:
        measured = run_difficulty(
            recipe,
            folder,
            out,
            tasks=tasks,
            rollouts=rollouts,
            on_progress=tell,
            on_place=print_place,
            on_ready=ready(recipe),
        )
    section = recipe.select
    within = sum(section.min_pass_rate <= one.rate <= section.max_pass_rate for one in measured)
    console = plain_console()
    console.print(_difficulty_table(measured))
    console.print(
        f"{counted(len(measured), 'task')} measured, {within} within "
        f"[{section.min_pass_rate:g}, {section.max_pass_rate:g}]: {out}"
    )
    if len(measured) < tasks:
        console.print(
            f"{tasks - len(measured)} have no rate: the task set is smaller, or they lost rollouts to faults and the "
            "same command again measures them"
        )
    if not within:
        console.print(
            "a training that selects by them would have no task: where none is solved, a cold start may have to come "
            "first (docs/data/demonstrations.md); where all are, take harder tasks"
        )
        return
    if of_run is not None:
        console.print(f"try: {_stage_advice(of_run, out)}")
        return
    own = overrides
    if _cannot_train(recipe):
        own = [*(override for override in overrides if not override.startswith("engine.")), "engine.kind=local"]
    again = command_line("retcon", "train", name or "RECIPE", *own, f"select.pass_rates={out}", "--from", checkpoint)
    console.print(f"try: {again}")


def _cannot_train(recipe: Recipe) -> bool:
    """Whether the engine cannot be trained, such as a server of text."""
    try:
        recipe.engine.check_training(recipe)
    except RecipeError:
        return True
    return False


def _stage_advice(stage: Stage, out: Path) -> str:
    """Advice on using a stage's rates. A run that has begun keeps the file that its recipe names."""
    wanted = stage.recipe.select.pass_rates
    if wanted and Path(wanted).resolve() == out.resolve():
        return f"the run's own command again: {stage} looks there"
    key = command_line(f"stages.{stage.name}.select.pass_rates={out}")
    if wanted and not Path(wanted).exists():
        return (
            f"{command_line('cp', out, wanted)}\nand the run's own command again, as {stage} looks there (one that has "
            f"not begun can have {key} instead)"
        )
    return f"a run that has not begun, with {key}" + f": one that has goes by {wanted}" * bool(wanted)


def _difficulty_table(measured: Sequence[PassRate]) -> Table:
    """Table of the number of tasks by rate."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.HORIZONTALS, pad_edge=False)
    table.add_column("passed", justify="right")
    table.add_column("tasks", justify="right")
    table.add_column("")
    counts = Counter((one.rate, f"{one.passed} of {one.rollouts}") for one in measured)
    for (_, label), count in sorted(counts.items()):
        table.add_row(label, str(count), "▇" * round(40 * count / len(measured)))
    return table


INSTEAD = {"evaluate.problems": "--prompts", "evaluate.samples": "rl.group"}
"""Keys of an evaluation, and what an audit has for them."""


def audit(
    checkpoint: Model,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            autocompletion=complete_word,
            help="The recipe whose credit is audited (its tasks, rollout, sandbox, repair and rl matter), and changes.",
        ),
    ] = None,
    *,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="Evaluation problems to roll out, rl.group times each.")
    ] = 24,
    calls: Annotated[int, typer.Option("--calls", min=1, help="Failed calls to replay, at most.")] = 48,
    replays: Annotated[int, typer.Option("--replays", min=1, help="Replays of each counterfactual.")] = 16,
    out: Out = Path("runs/audit"),
) -> None:
    """Replay a model's failed calls, repaired and not, to judge credit rules."""
    from retcon.build import build_limits
    from retcon.cli.arguments import READS
    from retcon.config.load import load_recipe
    from retcon.models.locating import locate

    name, overrides = split_overrides(words or [])
    for override in overrides:
        if (instead := INSTEAD.get(override.partition("=")[0].strip())) is not None:
            raise RecipeError(f"override '{override}': an audit has {instead} for that")
    recipe = load_recipe(name, overrides, reads=READS["audit"])
    folder = locate(checkpoint)
    if recipe.engine.in_process:
        need_training()
    from retcon.evaluate.audit import RESULT, AuditJob, Size, run_audit
    from retcon.report.tables import audit_sheets
    from retcon.store.whole import write_whole
    from retcon.train.objective.shaping import comparable, shaped_rewards

    def turn_credit(
        recipe: Recipe, groups: Sequence[Sequence[Trajectory]], turns: Sequence[tuple[str, int]]
    ) -> Mapping[str, Sequence[float]]:
        from retcon.train.objective.audited import rtmc_pushes, sdpo_pushes

        found = {"RTMC": rtmc_pushes(groups, credit(recipe, groups), turns)}
        return found | {"SDPO": sdpo_pushes(folder, recipe, groups, turns)}

    def credit(recipe: Recipe, groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
        compared = [comparable(group, recipe.rl) for group in groups]
        found = recipe.rl.advantages_of_step(
            [shaped_rewards(group, recipe.rl, build_limits(recipe)) for group in compared]
        )
        known = {id(t): a for pair in zip(compared, found, strict=True) for t, a in zip(*pair, strict=True)}
        return [[known.get(id(t), 0.0) for t in group] for group in groups]

    size, own = Size(prompts, calls, replays), turn_credit if recipe.engine.in_process else None
    job = AuditJob(recipe, folder, out, size, credit, own)
    kept = f"what was replayed is kept in {out}; the same command continues"
    with interruptible(kept), show_progress(f"replaying failed calls of {checkpoint}") as tell:
        found = run_audit(job, on_progress=tell, on_place=print_place, on_ready=ready(recipe))
    sheets = audit_sheets(found)
    write_whole(out / "table.md", "\n".join(sheet.markdown() for sheet in sheets))
    console = plain_console()
    for sheet in sheets:
        console.print(sheet.table(), soft_wrap=False)
    console.print(f"result: {out / RESULT}\ntable: {out / 'table.md'}")
    console.print(f"try: {command_line('retcon', 'show', out / 'replays' / '0000.jsonl')}")


def regrade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a trajectory file (JSON Lines).")],
    *,
    grader: Annotated[
        str | None,
        typer.Option(
            "--grader",
            help="A name (a wrong one lists them all) or my_package.my_module:my_grade; by default the one that each "
            "task names, or else math.",
        ),
    ] = None,
    rewards: Annotated[
        Literal["signed", "binary", "graded"],
        typer.Option("--rewards", help="1 and -1, 1 and 0, or the score from 0 to 1."),
    ] = "signed",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="GRADER.KEY=VALUE", help="A setting of a grader, such as [bold]code.score=share[/]."
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks",
            metavar="FILE",
            help="The tasks: the data trained on, or rows with id and answer; by default as the run drew them.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="RUN/regraded, or FILE.regraded, by default.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Rollouts graded at a time.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Start over even if there are results.")] = False,
) -> None:
    """Score stored rollouts again, with another grader or a corrected one; the old files stay as they are."""
    from retcon.tasks.grading.grading import GradeSettings
    from retcon.tasks.grading.regrade import VERDICTS, RegradeJob
    from retcon.tasks.grading.regrade import regrade as do

    target = out or (run / "regraded" if run.is_dir() else run.with_name(f"{_stem(run)}.regraded"))
    settings = GradeSettings(grader or "math", rewards, _options(option or []))
    job = RegradeJob(run, target, settings, by=grader, tasks=tasks, at_once=jobs, force=force)
    kept = f"what was graded is kept in {target}; the same command continues"
    with interruptible(kept), show_progress(f"regrading {run}") as tell:
        done = do(job, tell)
    console = plain_console()
    console.print(_regrade_table(done), soft_wrap=False)
    for one in [one for one in done if one.change == "lost"][:5]:
        console.print(f"lost: {one.id}: {one.why}", style="yellow")
    shown = target / done[0].file if done else target
    console.print(f"verdicts: {target / VERDICTS}\ntry: {command_line('retcon', 'show', shown)}")


def _stem(file: Path) -> str:
    """A file's name without its common endings, so that files of one folder get folders of their own."""
    from retcon.store.compression import plain_name

    return plain_name(file.name).removesuffix(".jsonl")


def _options(words: Sequence[str]) -> dict[str, dict[str, object]]:
    """`grader.key=value` words as settings by grader. Raises RecipeError for other words."""
    options: dict[str, dict[str, object]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        grader, dot, name = key.rpartition(".")
        if not equals or not dot:
            raise RecipeError(
                f"--set '{word}' is not a setting: write it as grader.key=value, such as code.score=share"
            )
        try:
            options.setdefault(grader, {})[name] = json.loads(value)
        except ValueError:
            options.setdefault(grader, {})[name] = value
    return options


def _regrade_table(done: Sequence[RegradeResult]) -> Table:
    """Table of old against new rewards, a run's steps together."""
    from rich import box
    from rich.table import Table

    from retcon.tasks.grading.regrade import count_results

    groups: dict[str, list[RegradeResult]] = {}
    for one in done:
        path = Path(one.file)
        groups.setdefault(str(path.parent if path.parent.name == "trajectories" else path), []).append(one)
    if len(groups) > 1:
        groups["all"] = list(done)
    table = Table(box=box.HORIZONTALS, pad_edge=False, collapse_padding=True)
    table.add_column("", overflow="fold")
    columns = ("rollouts", "before", "now", "became right", "became wrong", "lost", "found")
    for name in ("rollouts", "right before", "right now", *columns[3:]):
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)  # so the name has room
    for name, group in groups.items():
        found = count_results(group)
        table.add_row(name, *(str(found[column]) for column in columns))
    return table
