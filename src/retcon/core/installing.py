"""What is to be installed for a part of Retcon, as this copy itself was, or fetched for a model, in words that a shell
takes."""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

NAME = "retcon-rl"
_SNAPSHOT = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
"""Of a model, in the Hugging Face hub's cache: models--ORG--NAME/snapshots/REVISION."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*\bextra\s*==\s*['\"]([\w-]+)['\"])?")


def requirements() -> dict[str, tuple[str, ...]]:
    """Names of the packages that Retcon needs, by extra; those that it cannot do without under the empty name.

    As its metadata says, so that none can be forgotten; empty where it runs without having been installed.
    """
    found: dict[str, list[str]] = {}
    own = _own()
    for line in (own.requires if own is not None else None) or ():
        if (match := _REQUIREMENT.match(line)) is not None:
            found.setdefault(match[2] or "", []).append(match[1])
    return {extra: tuple(names) for extra, names in found.items()}


def how_to_install(extra: str) -> str:
    """The command that adds an extra: from the folder, repository or file that Retcon was installed from, by its name
    where that was a package index."""
    own = _own()
    return f"pip install {_target(own.read_text('direct_url.json') if own is not None else None, extra)}"


def how_to_fetch(folder: Path) -> str:
    """What a message on a file that is not in a model's folder ends with where that is of the hub's cache: the command
    that fetches the rest. Empty for other folders. Not every repository has every file, so that it says `if`."""
    match = _SNAPSHOT.fullmatch(folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    if match is None:
        return ""
    name = shlex.quote(f"{match['owner']}/{match['name']}@{folder.name}")
    return f"; if only a part of it was fetched, run `retcon model get {name}`"


def _target(direct_url: str | None, extra: str) -> str:
    """direct_url: pip's record of what is no package index (PEP 610), None where it was one."""
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
