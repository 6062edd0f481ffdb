"""Files that commands put into a recipe, whatever their names."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the quickstart needs the [train] extra")

from retcon.cli.eval import _of_files
from retcon.cli.quickstart.prepare import Wish, _data_overrides
from retcon.config.load import load_recipe

NAMES = ["\N{GRINNING FACE}.jsonl", '\U00020bb7 "q".csv', "a\\b.jsonl", "\x7f.jsonl"]


@pytest.mark.parametrize("name", NAMES, ids=["emoji", "quoted", "backslash", "delete"])
def test_a_file_is_evaluated_on_by_any_name(name: str) -> None:
    task = load_recipe(None, _of_files([name], [])).model_dump()["task"]
    assert task["path"] == name
    several = load_recipe(None, _of_files([name, "b.csv"], [])).model_dump(mode="json")["task"]["sources"]
    assert [source["path"] if isinstance(source, dict) else source for source in several] == [name, "b.csv"]


@pytest.mark.parametrize("name", NAMES, ids=["emoji", "quoted", "backslash", "delete"])
def test_the_quickstart_takes_a_file_by_any_name(name: str) -> None:
    wish = Wish("smollm2", Path("out"), (), data=Path(name), eval_data=Path(name))
    task = load_recipe(None, ["task.kind=file", *_data_overrides(wish)]).model_dump()["task"]
    assert (task["path"], task["evaluation_path"]) == (name, name)
