"""Files that commands put into a recipe, whatever their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

pytest.importorskip("torch", reason="the quickstart needs the [train] extra")

from retcon.cli.eval import _data_overrides
from retcon.cli.learn import _beside
from retcon.cli.quickstart import QuickstartOptions
from retcon.config.load import load_recipe

NAMES = ["\N{GRINNING FACE}.jsonl", '\U00020bb7 "q".csv', "a\\b.jsonl", "\x7f.jsonl"]


@pytest.mark.parametrize("name", NAMES, ids=["emoji", "quoted", "backslash", "delete"])
def test_a_file_is_evaluated_on_by_any_name(name: str) -> None:
    task = load_recipe(None, _data_overrides([name], None, [])).model_dump()["task"]
    assert task["path"] == name
    several = load_recipe(None, _data_overrides([name, "b.csv"], None, [])).model_dump(mode="json")["task"]["sources"]
    assert [source["path"] if isinstance(source, dict) else source for source in several] == [name, "b.csv"]


def test_a_file_that_the_recipe_evaluates_on_has_no_subset_of_its_data_set(tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    held.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[task]\nkind = 'file'\npath = 'a/b'\nsubset = 'main'\nevaluation_path = '{held}'\n")
    assert load_recipe(str(recipe), _data_overrides([str(held)], str(recipe), [])).model_dump()["task"]["subset"] == ""


@pytest.mark.parametrize("name", NAMES, ids=["emoji", "quoted", "backslash", "delete"])
def test_the_quickstart_takes_a_file_by_any_name(name: str) -> None:
    options = QuickstartOptions("smollm2", Path("out"), (), data=Path(name), eval_data=Path(name))
    task = load_recipe(None, ["task.kind=file", *options.data_overrides]).model_dump()["task"]
    assert (task["path"], task["evaluation_path"]) == (name, name)


def test_demonstrations_are_called_by_the_folder_of_their_run_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine/runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine/runs")
    assert _beside(Path("start")) == Path("start-demonstrations.jsonl")
    assert _beside(Path()) == tmp_path / "mine/runs-demonstrations.jsonl"
    assert _beside(Path("..")) == tmp_path / "mine-demonstrations.jsonl"
    with pytest.raises(typer.BadParameter, match="/ has no name"):
        _beside(Path("/"))
