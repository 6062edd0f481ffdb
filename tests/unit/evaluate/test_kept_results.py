"""What an evaluation takes for measured already."""

from __future__ import annotations

from pathlib import Path

from comparing import FIX, trajectory
from retcon.config.load import load_recipe
from retcon.evaluate.result import Result, score, write_result
from retcon.evaluate.runner import RELEVANT, run_evaluation, settings_of
from retcon.report.reading import some_trajectories, view
from retcon.store import jsonl

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
