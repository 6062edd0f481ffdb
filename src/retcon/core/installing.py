"""What to install for a part of Retcon, in words that a shell takes: as this copy itself was installed."""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import Distribution, PackageNotFoundError, distribution

NAME = "retcon-rl"
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
