"""Training from Python and notebooks: `retcon.train("own", problems, model=…)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from retcon.config.load import load_recipe, toml_of
from retcon.core.errors import CheckpointError, RecipeError
from retcon.models.locating import locate
from retcon.runs.folder import NAME, RunFolder
from retcon.runs.progress import print_place, show_steps
from retcon.store.whole import write_whole

Problems = str | Path | Iterable[Mapping[str, Any]]


def train(
    recipe: str | Path = "own",
    problems: Problems | None = None,
    *,
    model: str | Path | None = None,
    out: str | Path = "runs/train",
    settings: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Train a model on problems like `retcon train`; return the run.

    Args:
        recipe: a TOML file, or the name of a shipped recipe.
        problems: what task.path takes, or rows: dicts or a `datasets.Dataset`, which are written to OUT-problems.jsonl.
        model: what --from takes; by default the recipe's model.path.
        out: the run's folder; the same one continues the run.
        settings: changes to the recipe, such as `{"rl.steps": 2}`.

    Raises RecipeError, CheckpointError, and what `run_rl` raises.
    """
    out = Path(out)
    given = []
    if problems is not None:
        path = str(problems) if isinstance(problems, str | Path) else str(_write_rows(problems, out))
        given = ["task.kind=file", f"task.path={toml_of(path)}"]
    changed = load_recipe(recipe, [*given, *(f"{key}={toml_of(value)}" for key, value in (settings or {}).items())])
    folder = locate(model or changed.model.path)
    from retcon.train.rl import run_rl  # it brings torch

    stages = [stage.name for stage in changed.stages]
    with show_steps(f"training {recipe}", changed.rl.steps, stages) as on_step:
        run_rl(changed, folder, out, on_step=on_step, on_rollouts=on_step.rollouts, on_place=print_place)
    return RunFolder(out)


def _write_rows(rows: Iterable[Mapping[str, Any]], out: Path) -> Path:
    """Write rows as JSON Lines beside `out`. Raises CheckpointError if a run there has other problems."""
    lines = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RecipeError(
                f"problems[{number}] is {type(row).__name__} {str(row)[:40]!r}: give dicts such as "
                '{"question": "What is 2 + 3?", "answer": "5"}, a datasets.Dataset, or a path'
            )
        lines.append(msgspec.json.encode(dict(row), enc_hook=_plain) + b"\n")
    content, file = b"".join(lines), out.with_name(f"{out.name}-problems.jsonl")
    if (out / NAME).exists() and file.is_file() and file.read_bytes() != content:
        raise CheckpointError(f"{out} was begun with other problems, those of {file}: choose another `out`")
    write_whole(file, content)
    return file


def _plain(value: Any) -> Any:
    """Convert a value that JSON lacks, such as NumPy's numbers or a date."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
