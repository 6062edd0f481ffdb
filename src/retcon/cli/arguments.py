"""Arguments that several commands share."""

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

from retcon.config.load import ALL, Data, all_keys, homes, load_recipe, shipped_recipes, with_kinds
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import Chosen
from retcon.core.errors import Interrupted, MissingExtra, RecipeError
from retcon.core.installing import how_to_install
from retcon.core.texts import is_url
from retcon.runs.progress import tell_line

if TYPE_CHECKING:
    from rich.console import Console


def _elsewhere(flag: str, key: str) -> object:
    """A flag of other commands, which here is a key of the recipe."""

    def refuse(value: str | None) -> None:
        refuse_idle(flag, value is not None, f"here it is a key of the recipe: {key}={value}")

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


@contextmanager
def interruptible(message: str | Callable[[], str]) -> Iterator[None]:
    """Turns Ctrl-C, and SIGTERM, inside the block into `Interrupted` with `message`, or with what it says by then."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT)) if main else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message if isinstance(message, str) else message()) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


_ROLLOUTS = ("run", "model", "compute", "engine", "task", "rollout", "sandbox")

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
"""A section that matters to a part of a command's work alone, such as the making of demonstrations, is among them, as
are those that say which tools the model is shown. section.key: of that section this key alone. conversing: `ask` and
`serve-agent`; compare: also `reproduce`. `eval` takes those of the training that it measures."""


def import_training() -> None:
    """Import torch and transformers with the garbage collector at rest, and set what they leave aside (`gc.freeze`).

    That is some 400,000 objects which never go. To pass through them again and again takes a seventh of the imports'
    time, and each full collection .2 s from then on. For the process of a command alone: what was set aside is never
    collected. Raises MissingExtra (see `need_training`).
    """
    need_training()
    gc.disable()
    try:
        import transformers.modeling_utils  # noqa: F401 - and with it torch, and what all models share
    finally:
        gc.enable()
    gc.freeze()


def ready(recipe: Recipe) -> Callable[[], None]:
    """What to call once nothing but computing is left: imports what the recipe's engine needs here, and says so."""

    def load() -> None:
        if recipe.engine.in_process:
            tell_line("loading torch")
            import_training()

    return load


ROOM = 8192
"""Tokens of a conversation at most, where a model in a folder takes more."""
ANSWER = 1024
"""Of one message, of a server."""
CHARS = 2000


def conversing(
    model: str, tools: Sequence[str], overrides: Sequence[str], *, answer_tokens: int = ANSWER
) -> tuple[Recipe, Path]:
    """The recipe, of the lengths that the model takes unless `overrides` say otherwise, and the folder of the model; of
    one behind a URL that of model.path, whose tokenizer counts, the base model's where it is not given. answer_tokens:
    of one message of a server, 0 where requests say it.

    Raises RecipeError, also for a harness, which nobody would ask, CheckpointError where there is no such model,
    MissingExtra where it computes here and that needs packages which are not installed.
    """
    from retcon.models.locating import BASE, locate

    served = is_url(model)
    folder = locate(BASE if served else model)
    recipe = _recipe(model if served else None, folder, tools, overrides, answer_tokens)
    if recipe.rollout.harness:
        raise RecipeError("rollout.harness: whoever converses makes the rollouts here: leave it out")
    recipe.task.refuse_rollouts(recipe)
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
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file that contains the token.", show_default=False),
]


def token_option(variable: str) -> Any:
    """`--token`. variable: of the environment, which says it too."""
    said = "Bearer token (API key) to require. Other users of this machine can read a command line: prefer the file."
    return typer.Option("--token", envvar=variable, help=said, show_default=False)


def need_serving() -> None:
    """Raises MissingExtra, with what to install, where [serve] is not there."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise MissingExtra(f"serving needs {', '.join(missing)}: {how_to_install('serve')}")


def token_of(token: str | None, file: Path | None) -> str | None:
    """The token, or that in a file. Raises ValueError where the file cannot be read or is empty."""
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
"""Sections whose overrides concern a cold start; by [engine] its demonstrations may be made."""


def taken(recipe: str, overrides: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """The overrides that can be of the recipe; one cannot where it sets a key of a kind that neither the recipe nor an
    override chooses: such as SAAR's γ where nothing repairs, or of a stage that it does not have. given: overrides that
    it has beside these."""
    data = with_kinds(recipe, [*given, *overrides])
    return [override for override in overrides if _takes(data, override)]


def refuse_untaken(overrides: Sequence[str], takers: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raises RecipeError for an override that is taken nowhere because it is wrong, or of another kind. takers: each
    recipe with what it takes."""
    for override in overrides:
        if any(override in own for _, own in takers):
            continue
        staged = override.startswith("stages.")
        # The default of a section that a recipe leaves out may be of the kind that has the key.
        for recipe, own in [one for one in takers if staged and load_recipe(one[0]).stages] or takers:
            load_recipe(recipe, [*own, override])


def of_cold_start(recipe: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that concern a cold start by this recipe, and can be of it."""
    return taken(recipe, of_sections(overrides, COLD_SECTIONS))


def of_sections(overrides: Sequence[str], sections: Iterable[str]) -> list[str]:
    """The overrides of these sections, or of the one key that a name has after its section's (`evaluate.seed`)."""
    named = set(sections)
    return [o for o in overrides if not named.isdisjoint((o.partition(".")[0].strip(), o.partition("=")[0].strip()))]


def names_demos(recipe: Recipe, overrides: Sequence[str]) -> bool:
    """Whether somebody said what demonstrations are made of: not where the recipe names every section, as a report
    writes it, and [demos] is the default. overrides: those of `recipe`."""
    named = recipe.model_fields_set
    written_out = named >= SECTIONS.keys() and recipe.demos == Recipe().demos
    return bool(of_sections(overrides, ["demos"])) or ("demos" in named and not written_out)


def _takes(data: Data, override: str) -> bool:
    section, _, key = override.partition("=")[0].strip().partition(".")
    layers = [data]
    if section == "stages":
        named, _, rest = key.partition(".")
        stages = enumerate(data.get("stages", ()), start=1)
        stage = next((one for number, one in stages if named in (one.get("name"), str(number))), None)
        if stage is None:
            return False
        section, _, key = rest.partition(".")
        layers.append(stage)
    about = SECTIONS.get(section)
    if about is None or not issubclass(about, Chosen) or not homes(section, key):
        return True
    try:
        return key in about.kind_in({k: v for layer in layers for k, v in layer.get(section, {}).items()}).model_fields
    except RecipeError:  # which whoever reads the recipe tells
        return True
