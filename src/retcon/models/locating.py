"""What a recipe's `model.path` and a command's MODEL mean: one folder on this machine, without the network."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from retcon.core.errors import CheckpointError, nearest
from retcon.core.installing import how_to_fetch
from retcon.core.texts import is_url
from retcon.models.catalogue import PACKAGED, kept, models_folder
from retcon.models.hub import cached, hub_name
from retcon.models.keeping import once

GGUF = ".gguf"
TOKENIZER = "tokenizer.json"
"""Beside a GGUF file, it goes before the one in it."""
BASE = Path(__file__).parent.parent / "assets" / "base"
"""The model inside the package."""
SCRATCH = "scratch"
"""Of a recipe's `model.path`: that one's configuration with fresh weights."""
DEEP = "base-deep"
"""The model inside the package with each layer twice (`retcon.models.deepening`): made once, and kept."""
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
    from retcon.models.deepening import deepen  # it needs the [train] extra

    weights = hashlib.sha256((BASE / "model.safetensors").read_bytes()).hexdigest()[:12]
    return once(models_folder() / f"{DEEP}-{weights}", lambda folder: deepen(BASE, folder))


def _from_gguf(file: Path) -> Path:
    """The folder that the GGUF file was converted to; it is another one once the file, or the tokenizer beside it, has
    changed."""
    from retcon.models.gguf.converting import convert

    if file.suffix != GGUF:
        raise CheckpointError(f"{file} is a file: a model is a folder with a config.json, or a {GGUF} file")
    file = file.resolve()
    about = [file.stat(), *(own.stat() for own in [file.with_name(TOKENIZER)] if own.is_file())]
    sizes = [f"{one.st_size}\n{one.st_mtime_ns}" for one in about]
    state = hashlib.sha256("\n".join([str(file), *sizes]).encode()).hexdigest()[:12]
    stem = re.sub(r"[^\w.-]", "_", file.stem)
    return once(models_folder() / f"{stem}-{state}", lambda folder: convert(file, folder))
