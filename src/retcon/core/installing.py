"""Shell commands that install an extra of Retcon or fetch a model."""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

NAME = "retcon-rl"
_SNAPSHOT = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
"""A model's folder in the Hugging Face hub's cache: models--ORG--NAME/snapshots/REVISION."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*\bextra\s*==\s*['\"]([\w-]+)['\"])?")


def requirements() -> dict[str, tuple[str, ...]]:
    """Return the names of the packages that each extra needs; "" holds the core's.

    They come from the package metadata; empty where Retcon runs without being installed.
    """
    found: dict[str, list[str]] = {}
    own = _own()
    for line in (own.requires if own is not None else None) or ():
        if (match := _REQUIREMENT.match(line)) is not None:
            found.setdefault(match[2] or "", []).append(match[1])
    return {extra: tuple(names) for extra, names in found.items()}


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra from where Retcon was installed: a folder, repository or file, else
    the package index."""
    own = _own()
    return f"pip install {_target(own.read_text('direct_url.json') if own is not None else None, extra)}"


def how_to_fetch(folder: Path) -> str:
    """Suggest a command that fetches a model's missing files. It ends an error; "" for a folder outside the hub's
    cache. Not every repository has every file, hence `if`."""
    match = _SNAPSHOT.fullmatch(folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    if match is None:
        return ""
    name = shlex.quote(f"{match['owner']}/{match['name']}@{folder.name}")
    return f"; if only a part of it was fetched, run `retcon model get {name}`"


def _target(direct_url: str | None, extra: str) -> str:
    """Return pip's target. direct_url: pip's record of a folder, repository or file (PEP 610); None: an index."""
    about = json.loads(direct_url) if direct_url else {}
    url = str(about.get("url", ""))
    if vcs := about.get("vcs_info"):
        return shlex.quote(f"{NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    if url.startswith("file://"):
        from urllib.parse import unquote

        editable = "-e " if about.get("dir_info", {}).get("editable") else ""
        return editable + shlex.quote(f"{unquote(url.removeprefix('file://'))}[{extra}]")
    return shlex.quote(f"{NAME}[{extra}] @ {url}" if url else f"{NAME}[{extra}]")


def _own() -> Distribution | None:
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        return None
