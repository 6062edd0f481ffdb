"""`retcon sft`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import (
    DryRun,
    NoStart,
    Out,
    RecipeName,
    SFTOverrides,
    command_line,
    kept_run,
    need_training,
    refuse_several,
    split_overrides,
    tell_trained,
)
from retcon.cli.common.importing import import_training
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_line, tell_place, telling, telling_steps

if TYPE_CHECKING:
    from retcon.train.sampled import Samples
    from retcon.train.trainer import Metrics, OnStep

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
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    _start: NoStart = None,
) -> None:
    """Supervised training: a cold start on a teacher's demonstrations, or training on your own transcripts."""
    from retcon.cli.common.overriding import of_sections
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe

    refuse_several("--demonstrations", demonstrations or ())
    name, changes = split_overrides([recipe, *(overrides or ())])
    settings = load_recipe(name or COLD_START, changes, reads=READS["sft"])
    need_training()
    from retcon.cli.common.demonstrations import ensure_demonstrations, refuse_missing
    from retcon.models.placing import model_folder, place_training
    from retcon.runs.folder import check_run

    file = demonstrations[0] if demonstrations else _beside(out)
    if demonstrations:
        own = of_sections(changes, READS["demos"])
        made_by = command_line("retcon", "demos", name or COLD_START, *own, "--out", file)
        refuse_missing(settings, changes, file, made_by)
    if dry_run:
        from retcon.cli.common.plan import plan_sft

        plan_sft(settings, file, out)
        return
    check_run(out, kind="sft", recipe=settings)
    import_training()
    from retcon.train.sft import run_sft

    if not file.exists():  # whose making may take hours
        place_training(settings, model_folder(settings.model.path), ("dtype",))
    samples: list[str] = []
    with interruptible(partial(kept_run, out)):
        with telling("writing demonstrations") as tell:
            ensure_demonstrations(settings, file, tell, tell_place)
        with telling_steps("supervised training", settings.sft.steps) as on_step:
            final = run_sft(
                settings,
                file,
                out,
                on_step=lambda metrics: _tell_step(metrics, on_step),
                on_place=tell_place,
                on_samples=lambda found: samples.append(_told(found)),
            )
    tell_trained(final, out, f"demonstrations: {file}", *samples, recipe=[recipe, *(overrides or ())])


def _beside(out: Path) -> Path:
    """DIR-demonstrations.jsonl. Raises BadParameter for a folder without a name."""
    folder = out if out.name not in ("", "..") else out.resolve()
    if not folder.name:
        raise typer.BadParameter(f"{out} has no name for demonstrations to be called by", param_hint="--out")
    return folder.with_name(f"{folder.name}-demonstrations.jsonl")


def _tell_step(metrics: Metrics, on_step: OnStep) -> None:
    on_step(metrics)
    if (loss := metrics.get("validation_loss")) is not None:
        tell_line(f"step {metrics['step']}: loss {metrics['loss'] or 0.0:.3f}, validation loss {loss:.3f} nats a token")


def _told(found: Samples) -> str:
    lost = f" ({found.lost} lost to infrastructure faults)" if found.lost else ""
    return (
        f"samples: {found.passed} of {found.total} right{lost}; read them: {command_line('retcon', 'show', found.file)}"
    )
