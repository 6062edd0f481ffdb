"""Arguments that several commands share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retcon.core.errors import MissingExtra, RecipeError
from retcon.core.installing import how_to_install

if TYPE_CHECKING:
    from rich.console import Console


def _elsewhere(flag: str, key: str) -> object:
    """A flag of other commands, which here is a key of the recipe."""

    def refuse(value: str | None) -> None:
        refuse_idle(flag, value is not None, f"here it is a key of the recipe: {key}={value}")

    return typer.Option(flag, hidden=True, callback=refuse)


def _changes(of: str, example: str) -> object:
    return typer.Argument(metavar="KEY=VALUE", help=f"{of}, such as [bold]{example}[/].", show_default=False)


_RECIPE, _KEYS = "Changes to the recipe", "Keys of a recipe to set"
Overrides = Annotated[list[str] | None, _changes(_RECIPE, "rl.steps=40")]
NoStart = Annotated[str | None, _elsewhere("--from", "model.path")]
NoData = Annotated[str | None, _elsewhere("--data", "task.path")]
DemosOverrides = Annotated[list[str] | None, _changes(_RECIPE, "sft.demonstrations=1000")]
SFTOverrides = Annotated[list[str] | None, _changes(_RECIPE, "sft.steps=400")]
ModelOverrides = Annotated[list[str] | None, _changes(_KEYS, "rollout.temperature=1")]
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A TOML file, or the name of a shipped recipe such as [bold]quickstart/saar[/]."
    ),
]
_MODEL = (
    "A run folder or a Hugging Face folder, a GGUF file, or a name: [bold]base[/], one of [bold]retcon model list[/], "
    "ORG/NAME of the hub."
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)]
ModelOrURL = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"{_MODEL} Or the URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1.",
        show_default=False,
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help=f"What to start from. {_MODEL} Default: the recipe's model.path.",
        show_default=False,
    ),
]
StartOfAll = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help="A model for all arms to start from, without a cold start.",
        show_default=False,
    ),
]
ColdStart = Annotated[
    str | None,
    typer.Option(
        "--cold-start",
        metavar="RECIPE",
        help="The recipe that makes the model all arms start from; by default, if their model knows no tools, "
        "their own demos and sft sections do.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where everything goes; the same folder continues it.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Training runs per arm; five make a finding.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, help="Runs at once; by default, one per core, which share a GPU.", show_default=False
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only report what would be loaded and computed, the memory of each part, and the time according to a "
        "short measurement; write nothing.",
    ),
]
TierName = Annotated[
    Literal["namespaces", "landlock", "rlimits"] | None,
    typer.Option(
        "--tier",
        help="The protection around programs (docs/sandbox/sandbox.md); the strongest by default.",
        show_default=False,
    ),
]


def split_overrides(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Words after a command: a name, such as a recipe's, if the first is no `key=value`, and the overrides.

    Raises RecipeError for a further word that is neither.
    """
    name = words[0] if words and "=" not in words[0] else None
    overrides = list(words[1:] if name is not None else words)
    for word in overrides:
        if "=" not in word:
            raise RecipeError(f"'{word}' is not an override: write it as section.key=value, such as rl.steps=40")
    return name, overrides


def refuse_several(flag: str, given: Sequence[Path]) -> None:
    """Raises typer.BadParameter where a flag that takes one file is there again: all but the last would not count."""
    if len(given) > 1:
        said = f"it takes one, and is given {len(given)}: {', '.join(map(str, given))}; join them into one"
        raise typer.BadParameter(said, param_hint=flag)


def number(value: float | None) -> float | None:
    """What an option with a fraction has as its callback: NaN is below no bound and above none. Raises
    typer.BadParameter."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter(f"{value} is no number")
    return value


def refuse_idle(flag: str, idle: bool, why: str) -> None:
    """Raises typer.BadParameter where a flag is given that would change nothing."""
    if idle:
        raise typer.BadParameter(why, param_hint=flag)


def need_training() -> None:
    """Raises MissingExtra unless the packages that training needs are installed; imports none of them."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "tokenizers", "safetensors") if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"this needs {', '.join(missing)}: {how_to_install('train')}")


def command_line(*words: object) -> str:
    """A command as it can be pasted into a shell."""
    return shlex.join(str(word) for word in words)


def plain_console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """Prints text as it is: brackets and colons in paths and commands are theirs. soft_wrap: whether long lines are
    left to the terminal, as is right for lines, and not for tables."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=soft_wrap, markup=False, emoji=False, stderr=stderr)


def kept_run(out: Path) -> str:
    """What to say where a training is interrupted, which may be before it has begun."""
    if not out.exists():
        return f"{out} was not begun; the same command starts it"
    return f"what {out} holds is kept; the same command continues from its newest checkpoint"


def tell_trained(final: Path, out: Path, *others: str, recipe: Sequence[str] = ()) -> None:
    """Where a training's results are, and what to run next. others: lines on what else there is. recipe: its name and
    its overrides, as they were given, where they say on which tasks to evaluate."""
    console = plain_console()
    console.print("\n".join((f"model: {final}", *others)))
    console.print(f"try: {command_line('retcon', 'eval', out, *recipe, '--out', out / 'eval')}")
