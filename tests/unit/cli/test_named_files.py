"""Files that commands put into a recipe, whatever their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

pytest.importorskip("torch", reason="the quickstart needs the [train] extra")

from retcon.cli.eval import SAMPLES, _of_files
from retcon.cli.learn import _beside
from retcon.cli.quickstart import QuickstartOptions
from retcon.config.load import load_recipe
from retcon.tasks.registry import EVERY

NAMES = ["\N{GRINNING FACE}.jsonl", '\U00020bb7 "q".csv', "a\\b.jsonl", "\x7f.jsonl"]


@pytest.mark.parametrize("name", NAMES, ids=["emoji", "quoted", "backslash", "delete"])
def test_a_file_is_evaluated_on_by_any_name(name: str) -> None:
    task = load_recipe(None, _of_files([name], None, [])).model_dump()["task"]
    assert task["path"] == name
    several = load_recipe(None, _of_files([name, "b.csv"], None, [])).model_dump(mode="json")["task"]["sources"]
    assert [source["path"] if isinstance(source, dict) else source for source in several] == [name, "b.csv"]


def test_how_many_problems_of_a_file_count_is_said_by_the_recipe_too(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[evaluate]\nproblems = 7\nseed = 3\n")
    for name, overrides, counts in (
        (None, [], (EVERY, SAMPLES)),
        (str(recipe), [], (7, SAMPLES)),
        (str(recipe), ["evaluate.problems=5", "evaluate.samples=2"], (5, 2)),
    ):
        found = load_recipe(name, [*_of_files(["a.jsonl"], name, overrides), *overrides]).evaluate
        assert (found.problems, found.samples, found.seed) == (*counts, 3 if name else 1000)


def test_which_rows_of_its_own_data_a_recipe_takes_says_nothing_of_the_files_that_are_named(tmp_path: Path) -> None:
    shipped, held_out = "smollm2/saar", tmp_path / "held_out.toml"
    held_out.write_text(
        "[task]\nkind = 'file'\npath = 'c/d'\nsubset = 'main'\nsplit = 'train'\nevaluation_path = 'e/f'\n"
    )
    of_any = tmp_path / "of_any.toml"
    of_any.write_text("[task]\nkind = 'file'\nsubset = 'main'\nsplit = 'validation'\nrevision = 'v1'\n")
    several = tmp_path / "several.toml"
    several.write_text("[task]\nkind = 'file'\nsources = ['a/b', 'c/d']\nsubset = 'main'\nsplit = 'train'\n")
    for name, files, overrides, kept in (
        (shipped, ["a.jsonl"], [], ("", "", "")),
        (shipped, ["openai/gsm8k"], [], ("", "main", "")),
        (shipped, ["a/b"], ["task.split=validation", "task.subset=all", "task.revision=v2"],
         ("validation", "all", "v2")),
        (str(held_out), ["e/f"], [], ("", "main", "")),
        (str(held_out), ["c/d", "e/f"], [], ("", "main", "")),
        (str(held_out), ["e/f", "a.jsonl"], [], ("", "", "")),
        (str(several), ["c/d"], [], ("", "main", "")),
        (str(several), ["e/f"], [], ("", "", "")),
        (str(of_any), ["e/f"], [], ("validation", "main", "v1")),
    ):  # fmt: skip
        task = load_recipe(name, [*_of_files(files, name, overrides), *overrides]).model_dump()["task"]
        assert (task["split"], task["subset"], task["revision"]) == kept


def test_a_file_that_the_recipe_evaluates_on_has_no_subset_of_its_data_set(tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    held.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[task]\nkind = 'file'\npath = 'a/b'\nsubset = 'main'\nevaluation_path = '{held}'\n")
    assert load_recipe(str(recipe), _of_files([str(held)], str(recipe), [])).model_dump()["task"]["subset"] == ""


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
