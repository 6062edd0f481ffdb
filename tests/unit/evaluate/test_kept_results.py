"""What an evaluation takes for measured already."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparing import FIX, trajectory
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError
from retcon.evaluate.result import PartialFile, Result, partial, score, write_result
from retcon.evaluate.runner import RELEVANT, result_in, run_evaluation, settings_of
from retcon.report.runs import some_trajectories, view
from retcon.store import jsonl
from retcon.tasks.types import Task

RECIPE = load_recipe(None, ["evaluate.problems=1", "evaluate.samples=1"])


def test_a_setting_whose_trajectories_were_compressed_is_not_measured_again(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "eval"  # the model does not even exist: nothing is loaded
    out.mkdir()
    recipe = RECIPE.model_dump(mode="json")
    result = Result(str(model.resolve()), {name: recipe[name] for name in RELEVANT}, {})
    setting = score([("a", [trajectory("a/0", FIX)])], temperature=1.0, top_p=1.0, cpu_s=1.0, wall_s=1.0)
    for name in settings_of(RECIPE):
        jsonl.write(out / f"trajectories-{name}.jsonl.gz", [trajectory("a/0", FIX)])
        result = result.with_setting(name, setting)
    write_result(out / "result.json", result)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run_evaluation(RECIPE, model, out) == out / "result.json"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    _, shown = some_trajectories(view(out, "eval"))
    assert [one.id for one in shown] == ["a/0"], "a report shows them"


def test_an_evaluation_goes_on_where_its_model_was_moved_to_and_not_with_another(tmp_path: Path) -> None:
    """Such as with the whole folder of a comparison, to a disk with more room."""
    tasks, (old, moved, other) = [Task("a", "1 + 1?", "2")], (tmp_path / name for name in ("old", "moved", "other"))
    out = tmp_path / "eval"
    for folder, weights in ((old, b"1"), (other, b"2")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
    out.mkdir()
    begun = result_in(RECIPE, old, out, tasks)
    setting = score([("a", [trajectory("a/0", FIX)])], temperature=1.0, top_p=1.0, cpu_s=1.0, wall_s=1.0)
    write_result(out / "result.json", begun.with_setting("t1", setting))
    with PartialFile(out / "trajectories-top_p.jsonl", begun) as file:
        file.add("a", [trajectory("a/0", FIX)])
    old.rename(moved)
    assert partial(out / "trajectories-top_p.jsonl").is_file()
    held = result_in(RECIPE, moved, out, tasks)
    assert (held.checkpoint, list(held.settings)) == (str(moved.resolve()), ["t1"])
    with pytest.raises(CheckpointError, match=r"evaluates .*old, not .*other: choose another"):
        result_in(RECIPE, other, out, tasks)
