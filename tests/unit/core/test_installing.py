"""What is installed, what the version is, and what to install."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from retcon.core import installing
from retcon.core.installing import _target, how_to_fetch, how_to_install, requirements

ROOT = Path(__file__).parents[3]


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/retcon/__init__.py"


def test_requirements_are_read_with_their_extras():
    found = requirements()
    assert {"numpy", "cydifflib", "rapidfuzz", "aiohttp"} <= set(found[""])
    assert "torch" in found["train"]
    assert found["serve"] == ("starlette", "uvicorn")


def test_no_message_names_an_extra_by_itself():
    """`how_to_install` knows where this copy is from; the name alone may be on no package index."""
    files = [file for file in (ROOT / "src" / "retcon").rglob("*.py") if file.name != "installing.py"]
    assert [file.name for file in files if "retcon-rl[" in file.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, "'retcon-rl[train]'"),
        ({"url": "file:///a%20b/retcon", "dir_info": {"editable": True}}, "-e '/a b/retcon[train]'"),
        ({"url": "file:///x/retcon", "dir_info": {}}, "'/x/retcon[train]'"),
        ({"url": "file:///x/retcon.whl", "archive_info": {}}, "'/x/retcon.whl[train]'"),
        ({"url": "https://host/r.whl", "archive_info": {}}, "'retcon-rl[train] @ https://host/r.whl'"),
        (
            {"url": "https://host/r", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'retcon-rl[train] @ git+https://host/r@abc'",
        ),
    ],
)
def test_an_extra_comes_from_where_retcon_came_from(record, expected):
    assert _target(record and json.dumps(record), "train") == expected


def test_a_copy_that_was_never_installed_needs_nothing_that_is_known(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installing, "distribution", absent)
    assert requirements() == {}
    assert how_to_install("train") == "pip install 'retcon-rl[train]'"


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("hub/models--Qwen--Qwen3-4B/snapshots/1cfa9a", "retcon model get Qwen/Qwen3-4B@1cfa9a"),
        ("hub/models--a--b--c/snapshots/1", "retcon model get a/b--c@1"),
        ("models--Qwen--Qwen3-4B/refs/1cfa9a", None),
        ("mine/snapshots/1cfa9a", None),
    ],
)
def test_a_model_of_the_hubs_cache_says_what_fetches_the_rest_of_it(folder, command):
    said = f"; if only a part of it was fetched, run `{command}`" if command else ""
    assert how_to_fetch(Path(folder)) == said


def test_a_benchmark_that_is_a_program_can_be_run_as_one():
    for file in (ROOT / "benchmarks").rglob("*.py"):
        text = file.read_text()
        if "__main__" in text:
            assert text.startswith("#!/usr/bin/env python\n"), file.name
            assert file.stat().st_mode & 0o111, file.name
