"""Arguments and checks that several commands share."""

from __future__ import annotations

import gc
import json
import math
import shlex
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from retcon.config.load import (
    ALL,
    Data,
    all_keys,
    find_recipe,
    kinds_with_key,
    load_recipe,
    shipped_recipes,
    with_kinds,
)
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import PluginSection
from retcon.core.errors import Interrupted, MissingExtra, RecipeError
from retcon.core.installing import how_to_install
from retcon.core.texts import is_url
from retcon.runs.progress import print_line

if TYPE_CHECKING:
    from rich.console import Console


def _elsewhere(flag: str, key: str) -> object:
    """Refuse a flag of other commands that is a key of the recipe here."""

    def refuse(value: str | None) -> None:
        check_useful(flag, value is not None, f"here it is a key of the recipe: {key}={value}")

    return typer.Option(flag, hidden=True, callback=refuse)


def complete_recipe(incomplete: str) -> list[str]:
    """Names of shipped recipes, and recipe files here, for the shell."""
    here = [str(path) for path in sorted(Path().glob("*.toml"))]
    return [name for name in (*here, *shipped_recipes()) if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """Keys of a recipe, `section.key=`, for the shell."""
    section = incomplete.partition(".")[0]
    if section not in SECTIONS:
        return [f"{name}." for name in SECTIONS if name.startswith(incomplete)]
    return [key for name in all_keys(section) if (key := f"{section}.{name}=").startswith(incomplete)]


def complete_word(incomplete: str) -> list[str]:
    """Recipes and keys, for the shell."""
    return [*complete_recipe(incomplete), *complete_key(incomplete)]


def complete_measured(incomplete: str) -> list[str]:
    """Benchmarks, recipes and keys, for the shell."""
    from retcon.tasks.benchmarks import BENCHMARKS

    return [*(name for name in BENCHMARKS.names if name.startswith(incomplete)), *complete_word(incomplete)]


def _changes(of: str, example: str) -> object:
    help = f"{of}, such as [bold]{example}[/]."
    return typer.Argument(metavar="KEY=VALUE", help=help, show_default=False, autocompletion=complete_key)


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
        metavar="RECIPE",
        help="A TOML file, or the name of a shipped recipe such as [bold]quickstart/saar[/].",
        autocompletion=complete_recipe,
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
    typer.Option("--from", metavar="MODEL", help=f"What to start from. {_MODEL} Default: the recipe's model.path."),
]
StartOfAll = Annotated[
    str | None,
    typer.Option("--from", metavar="MODEL", help="A model for all arms to start from, without a cold start."),
]
ColdStart = Annotated[
    str | None,
    typer.Option(
        "--cold-start",
        metavar="RECIPE",
        help="The recipe that makes the model all arms start from; by default, if their model knows no tools, "
        "their own demos and sft sections do.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where everything goes; the same folder continues it.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Training runs per arm; five make a finding.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Runs at once; by default, one per core, which share a GPU.")
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
    typer.Option("--tier", help="The protection around programs (docs/sandbox/sandbox.md); the strongest by default."),
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


def check_single(flag: str, given: Sequence[Path]) -> None:
    """Check that a flag that takes one file is given once. Raises typer.BadParameter."""
    if len(given) > 1:
        why = f"takes one file, got {len(given)}: {', '.join(map(str, given))}; join them into one"
        raise typer.BadParameter(why, param_hint=flag)


def check_number(value: float | None) -> float | None:
    """Refuse NaN, which passes every bound; a callback of options. Raises typer.BadParameter."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter(f"{value} is not a number")
    return value


def check_useful(flag: str, idle: bool, why: str) -> None:
    """Check that a given flag has an effect. Raises typer.BadParameter."""
    if idle:
        raise typer.BadParameter(why, param_hint=flag)


def need_training() -> None:
    """Check that the packages of training are installed, without importing them. Raises MissingExtra."""
    missing = [name for name in ("torch", "transformers", "tokenizers", "safetensors") if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"this needs {', '.join(missing)}: {how_to_install('train')}")


def command_line(*words: object) -> str:
    """A command as it can be pasted into a shell."""
    return shlex.join(str(word) for word in words)


def plain_console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """A console that reads no markup in paths and commands. soft_wrap: leave long lines to the terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=soft_wrap, markup=False, emoji=False, stderr=stderr)


def describe_kept(out: Path) -> str:
    """Say what an interrupted training has kept."""
    if not out.exists():
        return f"{out} was not begun; the same command starts it"
    return f"what {out} holds is kept; the same command continues from its newest checkpoint"


def print_trained(final: Path, out: Path, *others: str, recipe: Sequence[str] = ()) -> None:
    """Print where a training's results are, and what to run next. others: further lines. recipe: name and overrides."""
    console = plain_console()
    console.print("\n".join((f"model: {final}", *others)))
    console.print(f"try: {command_line('retcon', 'eval', out, *recipe, '--out', out / 'eval')}")


@contextmanager
def interruptible(message: str | Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM in the block into `Interrupted` with `message`."""

    def interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in what a script runs behind itself
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if main else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message if isinstance(message, str) else message()) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


_ROLLOUTS = ("run", "model", "compute", "engine", "task", "rollout", "subcalls", "sandbox")

READS: Mapping[str, Sequence[str]] = {
    "demos": (*_ROLLOUTS, "demos", "sft"),
    "sft": (*_ROLLOUTS, "lora", "demos", "sft", "evaluate.seed", "track"),
    "dpo": ("run", "model", "compute", "lora", "task", "rollout", "sandbox", "dpo", "track"),
    "train": tuple(name for name in ALL if name not in ("sft", "dpo", "demos")),
    "difficulty": (*_ROLLOUTS, "select", "stages"),
    "audit": (*_ROLLOUTS, "evaluate.seed", "repair", "rl"),
    "conversing": (*_ROLLOUTS, "repair"),
    "compare": tuple(name for name in ALL if name != "dpo"),
}
"""Sections that each command reads, or single keys (`evaluate.seed`). conversing: `ask` and `serve-agent`; compare:
also `reproduce`. `eval` reads those of the training that it measures."""


def import_training() -> None:
    """Import torch and transformers without garbage collection, and freeze their objects (`gc.freeze`).

    Some 400,000 objects stay for good: collecting takes a seventh of the imports' time, and .2 s each time later. Only
    for a command's process. Raises MissingExtra.
    """
    need_training()
    gc.disable()
    try:
        import transformers.modeling_utils  # noqa: F401 - and with it torch, and what all models share
    finally:
        gc.enable()
    gc.freeze()


def ready(recipe: Recipe) -> Callable[[], None]:
    """Return a callback that imports the engine's needs and reports it."""

    def load() -> None:
        if recipe.engine.in_process:
            print_line("loading torch")
            import_training()

    return load


ROOM = 8192
"""Most tokens of a conversation with a local model."""
ANSWER = 1024
"""Most tokens of one message of a server."""
CHARS = 2000


def load_conversation(
    model: str, tools: Sequence[str], overrides: Sequence[str], *, answer_tokens: int = ANSWER
) -> tuple[Recipe, Path]:
    """Read a conversation's recipe with its model's lengths; find the model's folder.

    The folder of a model behind a URL is that of model.path, whose tokenizer counts. answer_tokens: most of one message
    of a server, 0 where requests set it. Raises RecipeError, CheckpointError, MissingExtra.
    """
    from retcon.models.locating import BASE, locate

    served = is_url(model)
    folder = locate(BASE if served else model)
    recipe = _recipe(model if served else None, folder, tools, overrides, answer_tokens)
    if recipe.rollout.harness:
        raise RecipeError("rollout.harness: in a conversation the client makes the rollouts: leave it out")
    recipe.task.check_rollouts(recipe)
    if served and "path" in recipe.model.model_fields_set:
        folder = locate(recipe.model.path)
    if recipe.engine.in_process:
        need_training()
    return recipe, folder


def _recipe(
    url: str | None, folder: Path, tools: Sequence[str], overrides: Sequence[str], answer_tokens: int
) -> Recipe:
    """url: of a server of chat completions, None for the model in `folder`."""
    from retcon.rollout.lengths import context_of

    given = [f"rollout.tools={json.dumps(list(tools))}", f"sandbox.output_chars={CHARS}", "sandbox.patience=0"]

    def read(lengths: Sequence[str]) -> Recipe:
        return load_recipe(None, [*given, *lengths, *overrides], reads=READS["conversing"])

    if url is not None:
        given += ["engine.kind=openai", f"engine.url={url}"]
        if read([]).engine.kind == "openai":  # other kinds have a patience of their own
            given += [f"engine.answer_tokens={answer_tokens}", "engine.patience=0"]
    recipe = read([])
    room = recipe.engine.room() or min(ROOM, context_of(folder))
    lengths = [f"rollout.max_tokens={2 * room // 3}", f"rollout.lookahead_tokens={room - 2 * room // 3}"]
    return read(lengths)


EXTRA = ("starlette", "uvicorn")
"""The packages of [serve]."""
Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines connect.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes any free one.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", metavar="FILE", help="A file that contains the token.")]


def token_option(variable: str) -> Any:
    """Make the option `--token`, also read from an environment variable."""
    about = "Bearer token (API key) to require. Other users of this machine can read a command line: prefer the file."
    return typer.Option("--token", envvar=variable, help=about, show_default=False)


def need_serving() -> None:
    """Check that [serve] is installed. Raises MissingExtra."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise MissingExtra(f"serving needs {', '.join(missing)}: {how_to_install('serve')}")


def read_token(token: str | None, file: Path | None) -> str | None:
    """Return the token, or read it from a file. Raises ValueError."""
    if file is None:
        return token
    try:
        found = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--token-file {file}: {error.strerror}") from error
    if not found:
        raise ValueError(f"--token-file {file}: it is empty")
    return found


COLD_SECTIONS = ("run", "model", "compute", "lora", "engine", "task", "rollout", "sandbox", "demos", "sft", "track")
"""Sections of overrides for a cold start; [engine] may make its demonstrations."""


def select_overrides(recipe: str, overrides: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """Select the overrides that a recipe can have: keys of its kinds (SAAR's γ only with SAAR) and of its stages.

    given: overrides that it has besides.
    """
    data = with_kinds(recipe, [*given, *overrides])
    return [override for override in overrides if _takes(data, override)]


def check_taken(overrides: Sequence[str], takers: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Check that each override is valid for some recipe. takers: each recipe with its overrides. Raises RecipeError."""
    for override in overrides:
        if any(override in own for _, own in takers):
            continue
        staged = override.startswith("stages.")
        # The default of a section that a recipe leaves out may be of the kind that has the key.
        for recipe, own in [one for one in takers if staged and load_recipe(one[0]).stages] or takers:
            load_recipe(recipe, [*own, override])


def sort_recipes(
    words: Sequence[str], cold: str | None = None, vary: str | None = None
) -> list[tuple[str, str, list[str]]]:
    """Read the words of `retcon compare`: recipes, each with its value of `vary` and the overrides that it can have.

    cold: recipe of a cold start, which may be the only one to take an override. vary: `key=a,b`, whose values are the
    arms of one recipe; without it, a recipe's own is "". Raises RecipeError.
    """
    recipes = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    values = [""] if vary is None else _read_values(vary, recipes, overrides)
    if len(recipes) < 2 and vary is None:
        raise RecipeError(
            "name two recipes or more, or one with --vary KEY=VALUE,VALUE; one alone is trained by `retcon train` "
            "(`retcon recipes` lists all)"
        )
    if len(set(recipes)) < len(recipes):
        twice = next(recipe for recipe in recipes if recipes.count(recipe) > 1)
        raise RecipeError(f"{twice} is given twice; variants of one recipe are given by --vary KEY=VALUE,VALUE")
    own = []
    for recipe in recipes:
        find_recipe(recipe)
        for value in values:
            given = [value] if value else []
            own.append((recipe, value, [*given, *select_overrides(recipe, overrides, given)]))
    takers = [(recipe, given) for recipe, _, given in own]
    check_taken(overrides, [*takers, *([(cold, cold_start_overrides(cold, overrides))] if cold else ())])
    return own


def _read_values(vary: str, recipes: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Read `key=a,b` as `key=a` and `key=b`. Raises RecipeError."""
    key, _, rest = vary.partition("=")
    values = [f"{key}={value}" for word in rest.split(",") if (value := word.strip())]
    if len(set(values)) < max(2, len(values)):
        raise RecipeError(f"--vary {vary}: give a key and two values or more, such as credit.kind=inherit,node")
    if len(recipes) != 1:
        raise RecipeError(f"--vary makes the arms of one recipe, and {len(recipes)} are named: name one")
    if overrides_of(overrides, [key]):
        raise RecipeError(f"{key} is varied and set on the same command line: leave one of them out")
    return values


def cold_start_overrides(recipe: str, overrides: Sequence[str]) -> list[str]:
    """Select the overrides for a cold start by this recipe."""
    return select_overrides(recipe, overrides_of(overrides, COLD_SECTIONS))


def overrides_of(overrides: Sequence[str], sections: Iterable[str]) -> list[str]:
    """Select the overrides of sections, or of single keys (`evaluate.seed`)."""
    named = set(sections)
    return [o for o in overrides if not named.isdisjoint((o.partition(".")[0].strip(), o.partition("=")[0].strip()))]


def names_demos(recipe: Recipe, overrides: Sequence[str]) -> bool:
    """Whether [demos] is set: a recipe that a report wrote names every section, also at its default."""
    named = recipe.model_fields_set
    written_out = named >= SECTIONS.keys() and recipe.demos == Recipe().demos
    return bool(overrides_of(overrides, ["demos"])) or ("demos" in named and not written_out)


def _takes(data: Data, override: str) -> bool:
    section, _, key = override.partition("=")[0].strip().partition(".")
    layers = [data]
    if section == "stages":
        named, _, rest = key.partition(".")
        stages = enumerate(data.get("stages", ()), start=1)
        stage = next((one for check_number, one in stages if named in (one.get("name"), str(check_number))), None)
        if stage is None:
            return False
        section, _, key = rest.partition(".")
        layers.append(stage)
    about = SECTIONS.get(section)
    if about is None or not issubclass(about, PluginSection) or not kinds_with_key(section, key):
        return True
    try:
        return key in about.kind_in({k: v for layer in layers for k, v in layer.get(section, {}).items()}).model_fields
    except RecipeError:  # reported when the recipe is read
        return True
