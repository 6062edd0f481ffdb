"""Training, evaluations and demonstrations through a harness that a recipe names."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")
pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.build import build_specs
from retcon.cli.eval import audit
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, RecipeError, RecordError, SandboxUnavailable
from retcon.core.types import Trajectory, ids_of
from retcon.evaluate.difficulty import run_difficulty
from retcon.evaluate.runner import run_evaluation
from retcon.runs.folder import RunFolder
from retcon.serve.harness import harness_fingerprint
from retcon.store import jsonl
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from training import Ones, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
HARNESS = '''
import asyncio, aiohttp

class Twice:
    """Asks the question, and again when it is answered."""

    async def __call__(self, task, endpoint):
        told = []
        async with aiohttp.ClientSession() as http:
            for said in (task.question, "again"):
                told.append({"role": "user", "content": said})
                body = {"model": endpoint.name, "messages": told}
                async with http.post(f"{endpoint.url}/chat/completions", json=body) as answer:
                    answer.raise_for_status()
                    told.append((await answer.json())["choices"][0]["message"])

solve = Twice()

async def delegate(task, endpoint):
    async with aiohttp.ClientSession() as http:
        for at in (endpoint, endpoint.agent("helper")):
            body = {"model": at.name, "messages": [{"role": "user", "content": task.question}]}
            async with http.post(f"{at.url}/chat/completions", json=body) as answer:
                answer.raise_for_status()

def broken(task, endpoint):
    raise LookupError("no such tool")

LOOPS = []

async def told(task, endpoint):
    LOOPS.append(asyncio.get_running_loop())
    return await solve(task, endpoint)
'''


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An untrained base, and a tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("harnessed")
    base = make_base(folder / "base", positions=1024)
    return base, run_sft(small_recipe(base), make_demonstrations(base, folder / "demos.jsonl"), folder / "cold")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own; its name, which is another one in each test."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(HARNESS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def harnessed(base: Path, harness: str, **sections: dict[str, Any]) -> Recipe:
    limits = {"max_tokens": 200, "max_turns": 8, "lookahead_tokens": 64, "harness": harness}
    return small_recipe(base, **{"rl": {"steps": 2}, "rollout": limits, **sections})


def trained(recipe: Recipe, cold: Path, out: Path) -> tuple[bytes, list[Trajectory]]:
    run_rl(recipe, cold, out, tasks=Ones())
    return (out / "final/model.safetensors").read_bytes(), list(jsonl.read(out / "trajectories/step-000001.jsonl"))


def test_a_run_learns_from_a_harness_and_repeats_bit_for_bit(
    start: tuple[Path, Path], tmp_path: Path, module: str
) -> None:
    base, cold = start
    recipe = harnessed(base, f"{module}:solve")
    weights, made = trained(recipe, cold, tmp_path / "a")
    assert weights != (cold / "model.safetensors").read_bytes()
    whole = [t for t in made if t.stop == "answer"]
    assert whole
    assert all(t.text.count("again") == 1 for t in whole)
    assert any(t.failures < t.raw_failures for t in made)  # its calls ran here, and were repaired
    assert {t.provenance.step for t in made} == {1}
    assert all(t.reward is not None for t in made)
    again, others = trained(recipe, cold, tmp_path / "b")
    assert again == weights
    assert [list(ids_of(t.segments)) for t in others] == [list(ids_of(t.segments)) for t in made]
    told = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert max(line["mismatch_max"] for line in told) < 1e-3  # the log-probs are those of the ids that are learnt


def test_what_agents_said_is_in_the_samples_before_and_after_an_interruption(
    start: tuple[Path, Path], tmp_path: Path, module: str
) -> None:
    base, cold = start
    recipe = harnessed(base, f"{module}:delegate", credit={"kind": "inherit"})
    weights, _ = trained(recipe, cold, tmp_path / "whole")

    def stop(_: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_rl(recipe, cold, tmp_path / "cut", tasks=Ones(), on_step=stop)
    assert trained(recipe, cold, tmp_path / "cut")[0] == weights
    for step in (1, 2):
        made = list(jsonl.read(tmp_path / f"cut/trajectories/step-{step:06}.jsonl"))
        children = [(root, child) for root in made for child in root.children]
        assert {child.parent.relation for _, child in children if child.parent} == {"subagent"}
        trained_ones = [(root, child) for root, child in children if root.training and child.training]
        assert trained_ones
        assert all(root.training.advantage == child.training.advantage for root, child in trained_ones)


def test_a_harness_that_always_breaks_ends_the_run_with_its_own_words(
    start: tuple[Path, Path], tmp_path: Path, module: str
) -> None:
    base, cold = start
    with pytest.raises(SandboxUnavailable, match=rf"the harness raised LookupError: no such tool \(.*{module}.py:27\)"):
        trained(harnessed(base, f"{module}:broken"), cold, tmp_path / "run")


def test_a_run_goes_on_with_a_harness_that_was_mended_and_tells_of_it(
    start: tuple[Path, Path], tmp_path: Path, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    base, cold = start
    recipe = harnessed(base, f"{module}:broken", rl={"steps": 1})

    def told() -> list[str]:
        return [line for line in caplog.messages if "is other code than the run went on with so far" in line]

    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match="no such tool"):
            trained(recipe, cold, tmp_path / "run")
    assert not told()
    mended(tmp_path / f"{module}.py", "\nbroken = solve\n")
    with RunFolder(tmp_path / "run").at_work(), pytest.raises(CheckpointError, match="another command is at work"):
        trained(recipe, cold, tmp_path / "run")
    assert not told(), "the one that is at work goes on with the old one"
    trained(recipe, cold, tmp_path / "run")
    (line,) = told()
    assert f"run: rollout.harness = {module}:broken is other code" in line
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert len(set(about["harnesses"][f"{module}:broken"])) == 2
    trained(recipe, cold, tmp_path / "run")
    assert len(told()) == 1, "nothing is made any more"


def test_an_evaluation_by_another_version_of_the_harness_is_another_one(
    start: tuple[Path, Path], tmp_path: Path, module: str
) -> None:
    _, cold = start
    words = [f"rollout.harness={module}:solve", "evaluate.problems=1", "evaluate.samples=1", "evaluate.top_p=1.0",
             "sandbox.workers=1"]  # fmt: skip
    for seconds in (60, 7200):
        run_evaluation(load_recipe(None, [*words, f"rollout.harness_seconds={seconds}"]), cold, tmp_path / "eval")
    mended(tmp_path / f"{module}.py", "\nMORE = 1\n")
    with pytest.raises(CheckpointError, match=r"evaluation of other harness code \(.*\): choose another --out"):
        run_evaluation(load_recipe(None, words), cold, tmp_path / "eval")


def test_pass_rates_tell_the_harness_that_they_were_measured_through_and_are_of_one_alone(
    start: tuple[Path, Path], tmp_path: Path, module: str
) -> None:
    base, cold = start
    out, recipe = tmp_path / "rates.jsonl", harnessed(base, f"{module}:solve")

    def measure(recipe: Recipe, model: Path = cold) -> list[str | None]:
        return [one.harness for one in run_difficulty(recipe, model, out, tasks=1, rollouts=1)]

    told = measure(recipe)
    assert told == measure(recipe) == [f"{module}:solve {harness_fingerprint(f'{module}:solve')}"]
    with pytest.raises(
        RecordError, match=rf"of this model .* with rollout\.harness = {module}:solve \w+, now no harness"
    ):
        measure(harnessed(base, ""))
    with pytest.raises(RecordError, match=rf", now rollout\.harness = {module}:told \w+: choose another --out"):
        measure(harnessed(base, f"{module}:told"))
    assert measure(harnessed(base, ""), base) == [""], "of another model"
    mended(tmp_path / f"{module}.py", "\nMORE = 1\n")
    with pytest.raises(
        RecordError, match=rf"rollout\.harness = {module}:solve \w+, now rollout\.harness = {module}:so"
    ):
        measure(recipe)
    out.write_text(re.sub(r',"harness":"[^"]*"', "", out.read_text()))
    assert measure(recipe) == measure(harnessed(base, "")) == [None], "an earlier version told nothing of harnesses"


def test_what_is_finished_does_not_miss_its_harness(
    start: tuple[Path, Path], tmp_path: Path, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    base, cold = start
    harness = {"harness": f"{module}:solve"}
    stages = ({"name": "a", "steps": 1, "rollout": harness}, {"name": "b"})
    recipes = [
        harnessed(base, f"{module}:solve", rl={"steps": 1}),
        Recipe.model_validate({**harnessed(base, "").model_dump(), "stages": stages}),
    ]
    words = [f"rollout.harness={module}:solve", "evaluate.problems=1", "evaluate.samples=1", "evaluate.top_p=1.0",
             "sandbox.workers=1"]  # fmt: skip
    made = [trained(recipe, cold, tmp_path / f"run{n}") for n, recipe in enumerate(recipes)]
    result = run_evaluation(load_recipe(None, words), cold, tmp_path / "eval").read_bytes()
    manifest = (tmp_path / "run0/run.json").read_bytes()
    (tmp_path / f"{module}.py").unlink()
    sys.modules.pop(module)
    invalidate_caches()
    caplog.set_level("INFO", "retcon")
    assert [trained(recipe, cold, tmp_path / f"run{n}") for n, recipe in enumerate(recipes)] == made
    assert [line for line in caplog.messages if line.endswith("run0 is finished: nothing is trained any more")]
    assert (tmp_path / "run0/run.json").read_bytes() == manifest
    assert run_evaluation(load_recipe(None, words), cold, tmp_path / "eval").read_bytes() == result
    with pytest.raises(CheckpointError, match=r"rollout\.harness was"):
        trained(harnessed(base, "", rl={"steps": 1}), cold, tmp_path / "run0")
    with pytest.raises(RecipeError, match="cannot be imported"):
        trained(recipes[0], cold, tmp_path / "new")
    with pytest.raises(RecipeError, match="cannot be imported"):
        run_evaluation(load_recipe(None, words), cold, tmp_path / "new")


def mended(file: Path, more: str) -> None:
    """A user's module that says more from here on, as for a program that is started anew."""
    file.write_text(file.read_text() + more)
    sys.modules.pop(file.stem)
    invalidate_caches()


def test_an_evaluation_goes_through_the_harness(start: tuple[Path, Path], tmp_path: Path, module: str) -> None:
    base, cold = start
    recipe = harnessed(base, f"{module}:solve", rl={"steps": 1}, evaluate={"every": 1, "problems": 2})
    run_rl(recipe, cold, tmp_path / "run", tasks=Ones())
    (line,) = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    bare = harnessed(base, "", rl={"steps": 1}, evaluate={"every": 1, "problems": 2})
    run_rl(bare, cold, tmp_path / "bare", tasks=Ones())
    (plain,) = [json.loads(line) for line in (tmp_path / "bare/metrics.jsonl").read_text().splitlines()]
    assert line["eval_rollouts"] == plain["eval_rollouts"] == 8
    assert line["eval_tokens"] > 1.3 * plain["eval_tokens"]  # two answers a rollout


def test_all_settings_of_an_evaluation_have_one_event_loop(
    start: tuple[Path, Path], tmp_path: Path, module: str
) -> None:
    """Else a client that a harness keeps would end with the first of them."""
    base, cold = start
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"question": f"go {n}", "answer": "1"}) + "\n" for n in range(10)))
    recipe = harnessed(
        base,
        f"{module}:told",
        task={"kind": "file", "path": str(tasks), "evaluation_share": 0.5},
        evaluate={"problems": 1, "samples": 1, "top_p": 0.9},
    )
    run_evaluation(recipe, cold, tmp_path / "eval")
    loops = import_module(module).LOOPS
    assert len(loops) == 2
    assert loops[0] is loops[1]


@pytest.mark.parametrize(
    ("harness", "says"),
    [
        ("solve", "'solve' is not the import path of a function: write it as my_module:solve"),
        ("OWN:solv", r"has no 'solv' \(did you mean 'solve'\?\)"),
        ("OWN:Twice", "where a function solve\\(task, endpoint\\) belongs"),
        ("OWN:HERE", "where a function solve\\(task, endpoint\\) belongs"),
        ("math:gcd.__name__", "where a function solve\\(task, endpoint\\) belongs"),
        ("no_such_module_at_all:solve", "cannot be imported: No module named"),
    ],
)
def test_what_is_no_harness_is_refused(harness: str, says: str, tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(HARNESS + "\nHERE = 'here'\n")
    with pytest.raises(RecipeError, match=f"rollout.harness: .*{says}"):
        build_specs(Recipe.model_validate({"rollout": {"harness": harness.replace("OWN", module)}}))


def test_rollouts_that_branch_or_are_replayed_have_no_harness(tmp_path: Path, module: str) -> None:
    with pytest.raises(RecipeError, match="a harness's rollouts cannot be branched from"):
        load_recipe("mini/arpo", [f"rollout.harness={module}:solve"])
    with pytest.raises(RecipeError, match=r"rollout\.harness: an audit rolls back to the state before a failed call"):
        audit("base", ["mini/cleaner", f"rollout.harness={module}:solve"], out=tmp_path / "audit")
