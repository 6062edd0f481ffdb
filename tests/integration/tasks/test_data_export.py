"""`retcon data export --verl`: tasks of any source as verl's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="Parquet needs the [formats] extra")

import pyarrow.parquet
from typer.testing import CliRunner

from datafiles import questions, tasks, write
from retcon.cli.app import app
from retcon.core.errors import RecipeError, RecordError, RetconError
from retcon.store.pass_rates import PassRate, PassRateFile
from retcon.tasks.registry import task_set, training_prompts


def export(out: Path, *words: object) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["data", "export", "--verl", str(out), *map(str, words)])
    if isinstance(result.exception, RetconError):
        raise result.exception
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(out).to_pylist()
    purpose = "evaluate on" if "--evaluation" in words else "train on"
    said = " ".join(result.output.split())
    assert f"{len(rows)} tasks of " in said
    assert f" to {purpose}: " in said
    return rows


def test_what_is_trained_on_and_what_is_evaluated_on_are_all_that_there_is(tmp_path: Path) -> None:
    file, out = write(tmp_path / "a.jsonl", questions(40)), tmp_path / "verl/out.parquet"
    train = export(out, file, "--share", 0.2, "--system", "Think.")
    assert train[0]["prompt"][0] == {"role": "system", "content": "Think."}
    with pytest.raises(RecipeError, match=r"nothing of a is held out: .*--share"):
        export(out, file, "--evaluation")
    held_out = export(out, file, "--share", 0.2, "--evaluation")
    assert {row["extra_info"]["split"] for row in held_out} == {"evaluation"}
    asked = [row["prompt"][-1]["content"] for row in (*train, *held_out)]
    assert sorted(asked) == sorted(str(row["question"]) for row in questions(40))
    assert len(held_out) > 0


@pytest.mark.filterwarnings("ignore:.* of another split")
def test_what_is_said_of_files_is_said_of_what_is_written(tmp_path: Path) -> None:
    """Columns, grader, split, and which evaluation must not be among them."""
    rows = [{"text": f"What is {n} plus 1?", "label": str(n + 1), "split": name} for name in "ab" for n in range(3)]
    file, out = write(tmp_path / "a.jsonl", rows), tmp_path / "out.parquet"
    columns = ("--column", "question=text", "--column", "answer=label", "--grader", "exact")
    written = export(out, file, *columns, "--split", "b")
    assert sorted(row["prompt"][-1]["content"] for row in written) == [f"What is {n} plus 1?" for n in range(3)]
    assert {task.meta["grader"] for task in tasks(str(out))} == {"exact"}
    held_out = write(tmp_path / "b.jsonl", [{"question": "What is 1 plus 1?", "answer": "2"}])
    with pytest.raises(RetconError, match=r"a\.jsonl, line 5"):
        export(out, file, *columns, "--split", "b", "--against", held_out)


def test_a_task_set_comes_in_the_order_of_a_run(tmp_path: Path) -> None:
    rows = export(tmp_path / "out.parquet", "numbers", "--count", 5, "--seed", 3)
    drawn = [task.id for task, _ in zip(training_prompts(task_set("numbers"), 3), range(5), strict=False)]
    assert [row["extra_info"]["id"] for row in rows] == drawn
    assert [task.id for task in tasks(str(tmp_path / "out.parquet"), name="numbers")] == drawn


def test_the_tasks_of_a_recipe(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "out.parquet"
    path = write(tmp_path / "a.jsonl", questions(12))
    recipe.write_text(f'[task]\nkind = "file"\npath = "{path}"\nmax_prompt_tokens = 100\nevaluation_share = 0\n')
    assert len(export(out, "--recipe", recipe)) == 12
    assert len(export(out, "--recipe", recipe, "--count", 3)) == 3


def test_the_tasks_of_a_recipe_come_in_the_order_of_its_own_seeds(tmp_path: Path) -> None:
    recipe, out, rates = tmp_path / "mine.toml", tmp_path / "out.parquet", tmp_path / "rates.jsonl"
    recipe.write_text("[run]\nseed = 3\n[evaluate]\nseed = 8\n")
    family = task_set("numbers")
    drawn = {
        seed: [task.id for task, _ in zip(training_prompts(family, seed), range(5), strict=False)] for seed in (3, 0)
    }

    def ids(*words: object) -> list[str]:
        return [row["extra_info"]["id"] for row in export(out, "--recipe", recipe, *words)]

    assert ids("--count", 5) == drawn[3]
    assert ids("--count", 5, "--seed", 0) == drawn[0]
    assert ids("--count", 5, "--evaluation") == [task.id for task in family.evaluation(5, 8)]
    with PassRateFile(rates) as added:
        for task in drawn[3]:  # as `retcon difficulty` measures those of the recipe's seed
            added.add(PassRate(task, "m", 4, 8))
    recipe.write_text(recipe.read_text() + f'[select]\npass_rates = "{rates}"\n')
    assert ids("--count", 5) == drawn[3]


def test_what_a_recipes_pass_rates_leave_out_is_not_written(tmp_path: Path) -> None:
    recipe, out, rates = tmp_path / "mine.toml", tmp_path / "out.parquet", tmp_path / "rates.jsonl"
    path = write(tmp_path / "a.jsonl", questions(6))
    text = f'[task]\nkind = "file"\npath = "{path}"\nevaluation_share = 0\n[select]\nmin_pass_rate = 0.0\n'
    recipe.write_text(text)
    with pytest.raises(
        RecipeError, match=r"select\.min_pass_rate = 0\.0 leaves out nothing without select\.pass_rates"
    ):
        export(out, "--recipe", recipe)
    recipe.write_text(text + f'pass_rates = "{rates}"\n')
    with pytest.raises(RetconError, match=r"rates\.jsonl does not exist; `retcon difficulty` makes one"):
        export(out, "--recipe", recipe)
    ids = [task.id for task in tasks(path)]
    with PassRateFile(rates) as added:
        for task, passed in zip(ids[:5], (8, 0, 4, 8, 1), strict=True):
            added.add(PassRate(task, "m", passed, 8))
    assert {row["extra_info"]["id"] for row in export(out, "--recipe", recipe)} == {ids[1], ids[2], ids[4]}
    told = CliRunner().invoke(app, ["data", "export", "--verl", str(out), "--recipe", str(recipe)]).output
    assert f"left out for want of a pass rate: 1 task, such as {ids[5]};" in " ".join(told.split())
    other = tmp_path / "others.toml"
    other.write_text(recipe.read_text().replace(str(path), str(write(tmp_path / "b.jsonl", questions(9)[7:]))))
    with pytest.raises(RecipeError, match=r"rates\.jsonl: no task has a pass rate in it; .*--tasks"):
        export(out, "--recipe", other)
    with PassRateFile(rates) as added:
        added.add(PassRate(ids[5], "m", 8, 8))
    assert {row["extra_info"]["id"] for row in export(out, "--recipe", recipe)} == {ids[1], ids[2], ids[4]}
    assert len(export(out, "--recipe", recipe, "--count", 2)) == 2
    with PassRateFile(rates) as added:
        added.add(PassRate(ids[0], "other", 8, 8))
    with pytest.raises(RecipeError, match=r"has rates of 2 models \(m, other\): name a file with one model"):
        export(out, "--recipe", recipe)


def test_the_tasks_of_a_stage(tmp_path: Path) -> None:
    recipe, out, rates = tmp_path / "mine.toml", tmp_path / "out.parquet", tmp_path / "rates.jsonl"
    path, other = write(tmp_path / "a.jsonl", questions(6)[:2]), write(tmp_path / "b.jsonl", questions(6)[2:])
    recipe.write_text(
        f'[task]\nkind = "file"\npath = "{path}"\nevaluation_share = 0\n[[stages]]\nname = "easy"\nsteps = 9\n'
        "task.max_prompt_tokens = 40\n"
        f'[[stages]]\nname = "hard"\ntask.path = "{other}"\nselect.pass_rates = "{rates}"\n'
    )
    with PassRateFile(rates) as added:
        for task, passed in zip(tasks(other), (8, 0, 4, 2), strict=True):
            added.add(PassRate(task.id, "m", passed, 8))

    def asked(*words: object) -> set[str]:
        return {row["prompt"][-1]["content"] for row in export(out, "--recipe", recipe, *words)}

    own = {str(row["question"]) for row in questions(6)[:2]}
    assert asked() == asked("--stage", "easy") == asked("--stage", 1) == own
    assert asked("--stage", "hard") == {str(row["question"]) for row in questions(6)[4:]}
    told = CliRunner().invoke(app, ["data", "export", "--verl", str(out), "--recipe", str(recipe)]).output
    assert "of the recipe without its stages; --stage writes those of hard" in " ".join(told.split())
    with pytest.raises(RecipeError, match=r"--stage hrd: no stage 'hrd' \(did you mean 'hard'\?\)"):
        export(out, "--recipe", recipe, "--stage", "hrd")
    with pytest.raises(RecipeError, match=r"--stage hard: .* training tasks of a recipe; evaluations are of a recipe"):
        export(out, "--recipe", recipe, "--stage", "hard", "--evaluation")
    with pytest.raises(RecipeError, match=r"--stage hard: a stage selects training tasks of a recipe"):
        export(out, path, "--stage", "hard")


@pytest.mark.parametrize(
    "words",
    [("FILE",), ("FOLDER",), ("OTHER", "--against", "FILE"), ("--recipe", "RECIPE")],
    ids=["file", "folder", "against", "recipe"],
)
def test_what_is_read_is_not_written_over(words: tuple[str, ...], tmp_path: Path) -> None:
    file, recipe = tmp_path / "shards/a.parquet", tmp_path / "mine.toml"
    other = write(tmp_path / "b.jsonl", questions(8))
    file.parent.mkdir()
    export(file, other)
    recipe.write_text(f'[task]\nkind = "file"\npath = "{other}"\nevaluation_path = "{file}"\n')
    before, named = file.read_bytes(), {"FILE": file, "FOLDER": file.parent, "OTHER": other, "RECIPE": recipe}
    with pytest.raises(RecordError, match=r"--verl .*a\.parquet is an input too"):
        export(file, *(named.get(word, word) for word in words))
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("numbers",), "--count is missing: numbers is endless"),
        ((), "give either files of tasks or a recipe"),
        (("numbers", "--recipe", "mini/grpo"), "give either files of tasks or a recipe"),
        *(
            (("--recipe", "mini/grpo", "--count", 1, option, value), f"{option} is for files, .* set task.{key} in")
            for option, value, key in [
                ("--against", "a.jsonl", "against"), ("--grader", "number", "grader"),
                ("--column", "answer=b", "columns"), ("--split", "train", "split"), ("--subset", "main", "subset"),
                ("--revision", "v2", "revision"), ("--system", "Think.", "system"),
                ("--share", 0.5, "evaluation_share"),
            ]
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=says):
        export(tmp_path / "out.parquet", *words)
    with pytest.raises(RecipeError, match="end the name in"):
        export(tmp_path / "out.jsonl", "numbers", "--count", 1)
