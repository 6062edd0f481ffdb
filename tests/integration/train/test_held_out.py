"""Evaluations on the way: they tell of the policy, and change nothing of what is learnt."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from keys.acting import Lab, run
from keys.rollouts import scripted
from playing import call
from retcon.build import open_connected
from retcon.config.load import load_recipe
from retcon.core.errors import SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.runs.folder import RunFolder
from retcon.store import jsonl
from retcon.tasks.types import Task
from retcon.train.rl import run_rl
from retcon.train.sft import SamplingPlan, SamplingResult, run_sft, sample_final
from training import Graded, Ones, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An untrained base, and a tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("held-out")
    base = make_base(folder / "base")
    demonstrations = make_demonstrations(base, folder / "demonstrations.jsonl")
    return base, run_sft(small_recipe(base), demonstrations, folder / "cold")


def trained(start: tuple[Path, Path], out: Path, **evaluate: object) -> tuple[bytes, list[dict[str, Any]]]:
    base, cold = start
    recipe = small_recipe(base, rl={"steps": 4}, evaluate={"problems": 3, "every_samples": 2, **evaluate})
    lines: list[dict[str, Any]] = []
    final = run_rl(recipe, cold, out, tasks=Ones(), on_step=lines.append)
    return (final / "model.safetensors").read_bytes(), lines


def test_weights_and_metrics_are_the_same_with_evaluations_and_without(
    start: tuple[Path, Path], tmp_path: Path
) -> None:
    """With SAAR, whose random streams and whose engine the evaluation must leave alone."""
    weights, lines = trained(start, tmp_path / "with", every=1)
    bare, others = trained(start, tmp_path / "without")
    assert weights == bare
    for line, other in zip(lines, others, strict=True):
        shared = {
            k: v
            for k, v in other.items()
            if not k.startswith("engine_") and not k.endswith(("_s", "seconds", "_second"))
        }
        assert {k: line[k] for k in shared} == shared
        assert line["eval_rollouts"] == 6
        assert not any(name.startswith("eval") for name in other)


def test_a_sandbox_that_is_gone_by_an_evaluation_loses_no_step(
    start: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stage has others than the evaluation's: a sandbox is opened for that, when the step has been taken."""
    base, cold = start
    bare = small_recipe(base, rl={"steps": 3, "checkpoint_every": 99}, evaluate={"problems": 2, "every_samples": 1})
    values = bare.model_dump(mode="json", exclude_unset=True)
    values["evaluate"]["every"] = 2
    stages = [{"name": "short", "steps": 2, "rollout": {"max_turns": 2}}, {"name": "long"}]

    @contextlib.asynccontextmanager
    async def gone(*given: Any) -> Any:
        raise SandboxUnavailable("no sandbox server answers")
        yield

    monkeypatch.setattr("retcon.train.rollouts.open_connected", gone)
    lines: list[dict[str, Any]] = []

    def back(line: Any) -> None:
        lines.append(line)
        if line["step"] == 2:
            monkeypatch.setattr("retcon.train.rollouts.open_connected", open_connected)

    recipe = type(bare).model_validate({**values, "stages": stages})
    with caplog.at_level("WARNING", "retcon"):
        run_rl(recipe, cold, tmp_path / "out", tasks=Ones(), on_step=back)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert (lines[1]["eval_rollouts"], lines[1]["eval_pass_rate"]) == (0, None)
    assert lines[2]["eval_rollouts"] == 2
    assert "step 2: " in caplog.text
    assert "no sandbox server answers" in caplog.text


class Numbered(Ones):
    """Evaluation problems are named after the seed that drew them."""

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [Task(f"{seed}/{n}", "go", "1") for n in range(count)]


def test_the_figures_of_an_evaluation_by_hand(tmp_path: Path) -> None:
    """Three rollouts of each of two problems; those that are right answer 1."""
    replies = {
        "0/0": [call("print(a)"), call("print(b)"), call("print(1)"), "1"],
        "0/1": [call("print(2)"), call("print(a)"), "2"], "0/2": ["2"], "1/0": [call("print(3)"), "2"], "1/1": ["1"],
        "1/2": ["1"],
    }  # fmt: skip
    given = ("rollout.max_tokens=2000", "rollout.max_turns=6", "evaluate.problems=2", "evaluate.every_samples=3")
    seen: list[str] = []

    def written(id: str, text: str, n: int) -> str:
        seen.append(id)
        _, problem, _, index = id.split("/")  # seed, problem, step, index
        return replies[f"{problem}/{index}"][n]

    async def measured(seed: int) -> tuple[dict[str, float | None], Any]:
        recipe = load_recipe(None, [*given, f"evaluate.seed={seed}"])
        async with scripted(recipe, Lab(tmp_path), written) as rollouts:
            figures = await replace(rollouts, tasks=Numbered(), judged=None).evaluated()
            return figures, rollouts.context.chat.tokenizer

    figures, tokenizer = run(measured(7))
    texts = [text for given in replies.values() for text in given]
    assert figures == {
        "eval_pass_rate": pytest.approx((1 / 3 + 2 / 3) / 2),
        "eval_failed_calls": pytest.approx(3 / 6),
        "eval_first_try_failure_rate": pytest.approx(2 / 4),
        "eval_tokens": pytest.approx(sum(len(tokenizer.encode(text, special=True)) + 1 for text in texts) / 6),
        "eval_rollouts": 6,
    }
    assert {id.partition("/")[0] for id in seen} == {"7"}
    replies.update({key: ["1"] for key in replies})
    figures, _ = run(measured(8))
    assert (figures["eval_pass_rate"], figures["eval_failed_calls"]) == (1.0, 0.0)
    assert figures["eval_first_try_failure_rate"] is None, "none was made"


@pytest.mark.parametrize(("bound", "spent"), [("max_sampled_tokens", 1), ("max_cpu_seconds", 1e-3)])
def test_a_run_that_ends_early_is_measured_at_its_end(
    start: tuple[Path, Path], tmp_path: Path, bound: str, spent: float
) -> None:
    """What an arm of `--match tokens` came to: the curve's last point, and what is compared at equal tokens."""
    base, cold = start
    rl = {"steps": 9, "prompts": 1, "group": 2, bound: spent}
    recipe = small_recipe(base, rl=rl, evaluate={"problems": 2, "every_samples": 1, "every": 2})
    lines: list[dict[str, Any]] = []
    run_rl(recipe, cold, tmp_path / "out", tasks=Ones(), on_step=lines.append)
    assert [line["step"] for line in lines] == [1]
    assert lines[0]["eval_rollouts"] == 2


class Ungradable(Ones):
    """Faults take all rollouts of the evaluation."""

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        return trajectory if task.id.startswith("ones/evaluation") else super().grade(task, trajectory)


def test_of_an_evaluation_that_is_lost_nothing_is_known(start: tuple[Path, Path], tmp_path: Path) -> None:
    base, cold = start
    recipe = small_recipe(base, rl={"steps": 1}, evaluate={"problems": 1, "every_samples": 1, "every": 1})
    lines: list[dict[str, Any]] = []
    run_rl(recipe, cold, tmp_path / "out", tasks=Ungradable(), on_step=lines.append)
    measured = {name: value for name, value in lines[0].items() if name.startswith("eval_")}
    assert measured.pop("eval_rollouts") == 0
    assert set(measured.values()) == {None}, measured


def test_samples_of_a_final_model_are_greedy_and_counted_once(start: tuple[Path, Path]) -> None:
    base, cold = start
    run, recipe = RunFolder(cold.parent), small_recipe(base, sft={"samples": 4})
    family = Graded(rewards=((1.0,), (-1.0,), (None,), (1.0,)))
    found = sample_final(SamplingPlan(recipe, family, tuple(family.evaluation(4, 0))), run)
    assert found == SamplingResult(passed=2, total=4, lost=1, file=run.trajectories(60))
    assert len({t.text for t in jsonl.read(found.file)}) == 1, "of one prompt, whatever is drawn"
    assert sample_final(SamplingPlan(recipe, family, ()), run) == found, "those that a finished run has are read"
