"""Which changes of a recipe a run can be resumed with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError
from retcon.runs.folder import RunKind, check_place, differing, manifest, note_curve, relevant

OTHERS = ("evaluate.problems=3", "evaluate.seed=7", "evaluate.every_samples=1", "evaluate.faults=0.5")
SERVERS = ("engine.kind=vllm", "engine.url=http://a:1")


STAGED = """
[rl]
steps = 4

[[stages]]
name = "near"
steps = 2
sandbox.url = "http://a:1"
sandbox.workers = 1
sandbox.wall_seconds = 9.0

[[stages]]
name = "far"
"""


def resumed(folder: Path, began: tuple[str, ...], goes_on: tuple[str, ...], kind: RunKind = "rl") -> bool:
    return with_recipe(folder, load_recipe(None, began), load_recipe(None, goes_on), kind)


def with_recipe(folder: Path, began: Recipe, recipe: Recipe, kind: RunKind = "rl") -> bool:
    (folder / "run.json").write_text(json.dumps(manifest(kind, began, {}, None)))
    return check_place(folder, recipe, manifest(kind, recipe, {}, None))


@pytest.mark.parametrize("change", OTHERS)
def test_the_points_of_a_curve_are_measured_alike(tmp_path: Path, change: str) -> None:
    key, _, value = change.partition("=")
    with pytest.raises(CheckpointError, match=rf"another recipe: {key} was \d.*, is {value}\. Use the old"):
        resumed(tmp_path, ("evaluate.every=5",), ("evaluate.every=5", change))


@pytest.mark.parametrize(
    ("began", "goes_on"),
    [
        (("evaluate.every=5",), ("evaluate.every=2", "evaluate.samples=3", "evaluate.top_p=0.9")),
        (("evaluate.every=5",), OTHERS),
        ((), ("evaluate.every=2", *OTHERS)),
        ((), OTHERS),
        (SERVERS, (*SERVERS, "engine.url=http://b:1", "engine.at_once=7")),
        (("sandbox.url=http://a:1",), ("sandbox.url=http://b:1", "sandbox.workers=7", "sandbox.reuse=false")),
        (("rollout.harness=a:b",), ("rollout.harness=a:b", "rollout.harness_seconds=7200")),
    ],
    ids=["other steps", "none any more", "a first one", "no curve", "other servers", "another sandbox", "more time"],
)
def test_what_changes_no_figure_may_change(tmp_path: Path, began: tuple[str, ...], goes_on: tuple[str, ...]) -> None:
    assert resumed(tmp_path, began, goes_on)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("http://a:1", "http://b:1"), ("workers = 1", "workers = 7"), ('sandbox.url = "http://a:1"\n', "")],
    ids=["another server", "other workers", "none of its own"],
)
def test_a_stage_may_run_its_calls_elsewhere_too(tmp_path: Path, was: str, becomes: str) -> None:
    def staged(text: str) -> Recipe:
        (tmp_path / "staged.toml").write_text(text)
        return load_recipe(tmp_path / "staged.toml")

    assert with_recipe(tmp_path, staged(STAGED), staged(STAGED.replace(was, becomes)))
    with pytest.raises(CheckpointError, match=r"stages\.1\.sandbox\.wall_seconds was 9\.0, is 8\.0\. Use the old"):
        with_recipe(tmp_path, staged(STAGED), staged(STAGED.replace("9.0", "8.0")))


def test_a_curve_that_began_later_is_kept_and_one_that_there_is_stays(tmp_path: Path) -> None:
    assert resumed(tmp_path, (), ("evaluate.every=2",))
    for words, told in ((OTHERS, 1), ((), 1)):
        note_curve(tmp_path, load_recipe(None, ("evaluate.every=2", *words)))
        kept = json.loads((tmp_path / "run.json").read_text())["recipe"]["evaluate"]
        assert (kept["every"], kept["every_samples"]) == (2, told)


def test_a_cold_start_is_measured_by_itself(tmp_path: Path) -> None:
    assert resumed(tmp_path, ("evaluate.every=5",), ("evaluate.every=5", *OTHERS), "sft")


def test_seeds_of_requests_are_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"engine\.seeds was True, is False"):
        resumed(tmp_path, SERVERS, (*SERVERS, "engine.seeds=false"))


SHARED = ("run.seed=5", "run.threads=2", "model.style=hermes", "compute.dtype=bfloat16", "lora.rank=4")
ROLLED = (
    "engine.kind=scripted", "task.steps=3", "rollout.temperature=0.5", "strategy.kind=arpo", "repair.kind=saar",
    "select.dynamic=true", "sandbox.cpu_seconds=9", "rl.lr=0.5",
)  # fmt: skip
OF = {"rl": ROLLED, "sft": ("sft.lr=0.5",), "dpo": ("dpo.lr=0.5",)}


@pytest.mark.parametrize("change", [*SHARED, *(change for own in OF.values() for change in own)])
@pytest.mark.parametrize("kind", OF)
def test_what_a_run_depends_on_cannot_change_in_it_and_the_rest_can(tmp_path: Path, kind: RunKind, change: str) -> None:
    """What supervised and preference training learn from, they know by its content and not by [task] and [rollout]."""
    if change not in (*SHARED, *OF[kind]):
        assert resumed(tmp_path, (), (change,), kind)
        return
    with pytest.raises(CheckpointError, match=rf"another recipe: .*{change.partition('=')[0]} was "):
        resumed(tmp_path, (), (change,), kind)


def test_demonstrations_depend_on_how_they_are_made_and_on_nothing_of_the_training() -> None:
    found = relevant(load_recipe(None), "demonstrations")
    assert found.keys() == {"run", "model", "task", "rollout", "subcalls", "sandbox", "demos", "sft"}
    some = {name: set(found[name]) for name in ("run", "model", "sft")}
    assert some == {"run": {"seed"}, "model": {"style"}, "sft": {"demonstrations", "max_turns"}}
    assert "harness_seconds" not in found["rollout"]
    limits = {"cpu_seconds", "wall_seconds", "memory_mb", "output_chars"}
    assert found["sandbox"].keys() == {"sessions", "python", "packages", *limits}
    before = {**found, "sandbox": {**found["sandbox"], "url": ["http://a:1"], "workers": 7}}
    assert not list(differing(before, found)), "which those of an earlier Retcon say"


@pytest.mark.parametrize("masks", ["rl.truncated=mask", "rl.void_turns=mask"])
def test_a_run_from_before_masked_rollouts_left_the_baseline_goes_on_as_it_began(tmp_path: Path, masks: str) -> None:
    def begun(*words: str) -> None:
        about = manifest("rl", load_recipe(None, words), {}, None)
        del about["recipe"]["rl"]["masked_in_baseline"]
        (tmp_path / "run.json").write_text(json.dumps(about))

    def goes_on(*words: str) -> bool:
        recipe = load_recipe(None, words)
        return check_place(tmp_path, recipe, manifest("rl", recipe, {}, None))

    begun(masks)
    assert goes_on(masks, "rl.masked_in_baseline=true")
    with pytest.raises(CheckpointError, match=r"rl\.masked_in_baseline was True, is False\. Use the old values"):
        goes_on(masks)
    begun()
    assert goes_on(), "nothing was masked"
