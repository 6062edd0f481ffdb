"""The commands that train: `train`, `sft`, `dpo` and `demos`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import (
    DemosOverrides,
    DryRun,
    NoData,
    NoStart,
    Out,
    Overrides,
    RecipeName,
    SFTOverrides,
    Start,
    check_single,
    command_line,
    describe_kept,
    import_training,
    interruptible,
    need_training,
    plain_console,
    print_trained,
    split_overrides,
)
from retcon.core.errors import RecipeError, RecordError, nearest_path
from retcon.core.texts import counted
from retcon.models.locating import FINAL
from retcon.runs.progress import print_line, print_place, show_progress, show_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retcon.train.demos.making import Summary
    from retcon.train.sft import SamplingResult
    from retcon.train.trainer import Metrics, OnStep

MANY = 0.25
"""Share of cut-off rollouts above which a line says so."""


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    start: Start = None,
    out: Out = Path("runs/train"),
    dry_run: DryRun = False,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="With --dry-run: plan for verl on so many GPUs.")
    ] = None,
    gpu_gb: Annotated[float, typer.Option("--gpu-gb", min=1, help="Memory of each, in GB.")] = 80.0,
    _data: NoData = None,
) -> None:
    """Train a checkpoint by reinforcement learning, with or without purification."""
    from retcon.cli.arguments import READS
    from retcon.config.load import load_recipe
    from retcon.models.locating import is_unfetched, locate

    settings = load_recipe(recipe, overrides or (), reads=READS["train"])
    name = start or settings.model.path
    if gpus and not dry_run:
        raise RecipeError("--gpus plans and trains nothing: add --dry-run; recipes/verl/launch.sh trains on several")
    need_training()
    folder = None if gpus or (dry_run and is_unfetched(name)) else locate(name)
    from retcon.train.settling import resolve_run

    settled = None if folder is None else resolve_run(settings, folder, out)
    if dry_run:
        from retcon.cli.dry_run import plan_rl
        from retcon.planning.estimate import gpus_of

        plan_rl(settings, name, out, gpus_of(gpus, gpu_gb) if gpus else None, settled)
        return
    from retcon.runs.metrics import idle_mechanisms, read_metrics

    final = out / FINAL
    if settled is None:
        print_line(f"{out} is finished: nothing is trained any more")
    else:
        size = f"{settings.rl.prompts} × {settings.select.made(settings.rl.group)} rollouts"
        print_line(
            f"training {name} by {recipe}, {counted(settings.rl.steps, 'step')} of {size}, into {out}; loading torch"
        )
        with interruptible(partial(describe_kept, out)):
            import_training()
            from retcon.train.rl import run_rl

            stages = [stage.name for stage in settings.stages]
            with show_steps(f"training {recipe}", settings.rl.steps, stages) as on_step:
                run_rl(
                    settings,
                    locate(name),
                    out,
                    settled=settled,
                    on_step=on_step,
                    on_rollouts=on_step.rollouts,
                    on_place=print_place,
                )
    metrics = out / "metrics.jsonl"
    lines = [f"metrics: {metrics}", f"trajectories: {out / 'trajectories'}"]
    steps = list(read_metrics(metrics))
    if lost := round(sum(line.get("infrastructure") or 0 for line in steps)):
        made = round(sum(line.get("rollouts") or 0 for line in steps))
        lines.append(
            f"{lost:,} of {counted(made, 'rollout')} were dropped because of faults of the sandbox, the engine or a "
            "grader (see the warnings above)"
        )
    shares = [share for line in steps if (share := line.get("cut_off")) is not None]
    if shares and sum(shares) > MANY * len(shares):
        lines.append(
            f"{sum(shares) / len(shares):.0%} of the rollouts ended for want of tokens or turns (`cut_off` in the "
            "metrics): rollout.max_tokens or rollout.max_turns may be too few for this model (docs/data/problems.md)"
        )
    if not any(line.get("grad_norm") for line in steps):
        lines.append(
            "no step moved the weights: `same_reward` in the metrics is the share of groups whose rollouts all had one "
            "reward, of which nothing is learnt (docs/training/selection.md); where none is right, a cold start may "
            "have to come first (docs/data/demonstrations.md)"
        )
    lines += idle_mechanisms(settings, steps)
    print_trained(final, out, *lines, recipe=[recipe, *(overrides or ())])


COLD_START = "quickstart/cold_start"


def sft(
    recipe: RecipeName = COLD_START,
    overrides: SFTOverrides = None,
    out: Out = Path("runs/cold_start"),
    demonstrations: Annotated[
        list[Path] | None,
        typer.Option(
            "--demonstrations",
            metavar="FILE",
            help="What to learn from: trajectories, or transcripts in any format that `retcon purify` reads, or a "
            "folder of them; if FILE does not exist and [b]demos[/] is set, it is written as that says. "
            "Default: DIR-demonstrations.jsonl.",
        ),
    ] = None,
    dry_run: DryRun = False,
    _start: NoStart = None,
) -> None:
    """Train on a teacher's demonstrations (a cold start) or your own transcripts."""
    from retcon.cli.arguments import READS, overrides_of
    from retcon.config.load import load_recipe

    check_single("--demonstrations", demonstrations or ())
    name, changes = split_overrides([recipe, *(overrides or ())])
    settings = load_recipe(name or COLD_START, changes, reads=READS["sft"])
    need_training()
    from retcon.cli.demonstrations import check_demonstrations, ensure_demonstrations
    from retcon.models.locating import model_folder
    from retcon.runs.folder import check_free, check_run, is_finished
    from retcon.store.fingerprint import files_fingerprint, fingerprint
    from retcon.train.datasets.demonstrations import files_of

    file = demonstrations[0] if demonstrations else _beside(out)
    if demonstrations:
        own = overrides_of(changes, READS["demos"])
        made_by = command_line("retcon", "demos", name or COLD_START, *own, "--out", file)
        check_demonstrations(settings, changes, file, made_by)
    if dry_run:
        check_free(out, "sft", settings)
    else:
        check_run(out, kind="sft", recipe=settings)
    if dry_run:
        from retcon.cli.dry_run import plan_sft

        plan_sft(settings, file, out)
        return
    if file.exists():
        learnt = files_fingerprint(files_of(file))
        inputs = {"model": fingerprint(model_folder(settings.model.path)), "demonstrations": learnt}
        if is_finished(out, "sft", settings, inputs):
            _print_finished(out, f"demonstrations: {file}", recipe=[recipe, *(overrides or ())])
            return
    print_line(
        f"training {settings.model.path} on {file}, {counted(settings.sft.steps, 'step')}, into {out}; loading torch"
    )
    import_training()
    from retcon.models.placing import place_training
    from retcon.train.sft import run_sft

    if not file.exists():  # making it may take hours
        place_training(settings, model_folder(settings.model.path), ("dtype",))
    samples: list[str] = []
    with interruptible(partial(describe_kept, out)):
        with show_progress("writing demonstrations") as tell:
            ensure_demonstrations(settings, file, tell, print_place)
        with show_steps("supervised training", settings.sft.steps) as on_step:
            final = run_sft(
                settings,
                file,
                out,
                on_step=lambda metrics: _tell_step(metrics, on_step),
                on_place=print_place,
                on_samples=lambda found: samples.append(_result_of_sft(found)),
            )
    print_trained(final, out, f"demonstrations: {file}", *samples, recipe=[recipe, *(overrides or ())])


def _print_finished(out: Path, *lines: str, recipe: Sequence[str]) -> None:
    """Say that a run is finished, and where its model is."""
    print_line(f"{out} is finished: nothing is trained any more")
    print_trained(out / FINAL, out, *lines, recipe=recipe)


def _beside(out: Path) -> Path:
    """DIR-demonstrations.jsonl. Raises BadParameter for a folder without a name."""
    folder = out if out.name not in ("", "..") else out.resolve()
    if not folder.name:
        raise typer.BadParameter(f"{out} has no name to derive the demonstrations' from", param_hint="--out")
    return folder.with_name(f"{folder.name}-demonstrations.jsonl")


def _tell_step(metrics: Metrics, on_step: OnStep) -> None:
    on_step(metrics)
    if (loss := metrics.get("validation_loss")) is not None:
        print_line(
            f"step {metrics['step']}: loss {metrics['loss'] or 0.0:.3f}, validation loss {loss:.3f} nats a token"
        )


def _result_of_sft(found: SamplingResult) -> str:
    lost = f" ({found.lost} lost to infrastructure faults)" if found.lost else ""
    return (
        f"samples: {found.passed} of {found.total} right{lost}; read them: {command_line('retcon', 'show', found.file)}"
    )


def dpo(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="A recipe (its sections run, model, compute, lora and dpo matter, and its tools), and changes to it.",
        ),
    ] = None,
    *,
    pairs: Annotated[
        list[Path],
        typer.Option("--pairs", metavar="FILE", help="Pairs as `retcon purify --dpo` writes them.", show_default=False),
    ],
    start: Start = None,
    out: Out = Path("runs/dpo"),
    dry_run: DryRun = False,
) -> None:
    """Train by direct preference optimisation on failed calls and their fixes."""
    from retcon.cli.arguments import READS
    from retcon.config.load import load_recipe
    from retcon.models.locating import locate

    check_single("--pairs", pairs)
    name, overrides = split_overrides(words or [])
    recipe = load_recipe(name, overrides, reads=READS["dpo"])
    folder = locate(start or recipe.model.path)
    need_training()
    from retcon.runs.folder import check_free, is_finished
    from retcon.store.fingerprint import fingerprint
    from retcon.train.datasets.preferences import check_pairs

    check_free(out, "dpo", recipe)
    if not pairs[0].exists():
        raise RecordError(f"--pairs: {pairs[0]} does not exist{nearest_path(pairs[0])}")
    check_pairs(pairs[0])
    if dry_run:
        from retcon.cli.dry_run import plan_dpo

        plan_dpo(recipe, pairs[0], folder, out)
        return
    if is_finished(out, "dpo", recipe, {"start": fingerprint(folder), "pairs": fingerprint(pairs[0])}):
        _print_finished(out, f"metrics: {out / 'metrics.jsonl'}", recipe=[*filter(None, [name]), *overrides])
        return
    print_line(f"training {folder} on {pairs[0]}, {counted(recipe.dpo.steps, 'step')}, into {out}; loading torch")
    import_training()
    from retcon.train.dpo import run_dpo

    with interruptible(partial(describe_kept, out)), show_steps("preference training", recipe.dpo.steps) as on_step:
        final = run_dpo(
            recipe,
            pairs[0],
            folder,
            out,
            on_step=on_step,
            on_place=print_place,
        )
    print_trained(final, out, f"metrics: {out / 'metrics.jsonl'}", recipe=[*filter(None, [name]), *overrides])


def demos(
    recipe: RecipeName,
    overrides: DemosOverrides = None,
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where they go; repeating the command continues the file.")
    ] = Path("runs/demonstrations.jsonl"),
) -> None:
    """Write demonstrations for a cold start by the recipe's [b]demos[/] section: from a teacher, a model, annotated
    solutions or transcripts."""
    from retcon.cli.arguments import READS
    from retcon.config.load import load_recipe
    from retcon.store.whole import check_regular_file

    check_regular_file(out, "--out")
    settings = load_recipe(recipe, overrides or (), reads=READS["demos"])
    from retcon.cli.demonstrations import ensure_demonstrations

    kept = f"what was made is kept beside {out}; the same command makes the rest"
    with interruptible(kept), show_progress("writing demonstrations") as tell:
        summary = ensure_demonstrations(settings, out, tell, print_place)
    console = plain_console()
    console.print("\n".join(_result_of_demos(out, summary)))
    words = command_line("retcon", "sft", recipe, *(overrides or ()), "--demonstrations", out, "--out", "runs/sft")
    console.print(f"look: {command_line('retcon', 'show', out)}\ntry: {words}")


def _result_of_demos(out: Path, summary: Summary | None) -> list[str]:
    if summary is None:
        return [f"demonstrations: {out} (there already, and not of this command)"]
    lines = [f"demonstrations: {out}", f"kept: {summary.kept}, {summary.failed} of them with a failed call"]
    lines += [f"rejected: {count}, {why}" for why, count in summary.rejected.items()]
    if summary.left_over:
        lines.append(f"left over: {summary.left_over}, more than are wanted, or than the wanted share has a place for")
    return lines
