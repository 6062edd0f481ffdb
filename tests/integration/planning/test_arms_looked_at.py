"""What an arm cannot be trained for is told before anything is done for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from rich.console import Console

from retcon.cli.common.ledger import make_targets
from retcon.cli.common.targets import refuse_unready
from retcon.cli.compare.arms import read_arms
from retcon.cli.compare.plan import Wish, make_plan, open_ledger
from retcon.config.schema import TaskSection
from retcon.core.errors import RetconError
from retcon.models.locating import BASE
from retcon.tasks.types import Task
from retcon.train.stages.ready import unready
from training import Ones

pytestmark = pytest.mark.torch


def test_arms_that_do_not_fit_or_lack_their_harness_are_named_before_their_cold_start(tmp_path: Path) -> None:
    """Whose own demonstrations are not there here, so that it ends at once where it does begin."""
    arms = {"first": "", "second": "", "third": '[rollout]\nharness = "no_such_module:solve"\n'}
    for number, (name, text) in enumerate(arms.items(), start=1):
        budget = "[compute]\nkv_memory_mb = 1\n" if name == "second" else ""
        (tmp_path / f"{name}.toml").write_text(f"[rl]\nsteps = 2\nlr = {number}e-4\n{budget}{text}")
    cold = tmp_path / "cold.toml"
    cold.write_text(f'[demos]\nkind = "transcripts"\npath = ["{tmp_path}/absent.jsonl"]\n')
    keys = ("rollout.lookahead_tokens=4000", "sandbox.workers=1", "compute.device=cpu")
    words, out = [*(str(tmp_path / f"{name}.toml") for name in arms), *keys], tmp_path / "out"
    plan = make_plan(Wish(out, 2, "rollouts", cold=str(cold), faults=0.0), read_arms(words, cold=str(cold)), keys)
    with pytest.raises(RetconError) as told:
        make_targets(plan.targets, open_ledger(plan), at_once=1, console=Console(stderr=True), out=out)
    refused = str(told.value).split("; " + str(tmp_path))
    assert len(refused) == 2, "one of two seeds is looked at, and what nothing is in the way of is not named"
    assert "second.toml: compute.kv_memory_mb = 1: one rollout of" in refused[0]
    assert "third.toml: rollout.harness" in refused[1]
    assert not out.exists()


def test_runs_that_have_begun_are_not_looked_at_again(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.toml").write_text(f"[rl]\nsteps = 2\nlr = {number}e-4\n[compute]\nkv_memory_mb = 1\n")
    words = [str(tmp_path / "1.toml"), str(tmp_path / "2.toml"), "rollout.lookahead_tokens=4000"]
    plan = make_plan(Wish(tmp_path / "out", 1, "rollouts", start="base"), read_arms(words))
    for targets in plan.trained.values():
        targets[0].makes.parent.mkdir(parents=True)
        (targets[0].makes.parent / "run.json").write_text(json.dumps({}))
    refuse_unready(plan.targets)


DRAWN: list[int] = []


@dataclass(frozen=True)
class Counting(Ones):
    def train(self, seed: int) -> Iterator[Task]:
        for n in count():
            DRAWN.append(n)
            yield Task(f"ones/{seed}/{n}", f"go {n}", "1")


class Counted(TaskSection):
    """`task.kind = "test_arms_looked_at:Counted"`."""

    own_lengths: ClassVar[bool] = True

    def build(self, count_tokens: object = None) -> Counting:
        return Counting()


def test_of_a_long_run_the_tasks_of_a_step_are_looked_at(tmp_path: Path) -> None:
    """Which takes no longer than those of a short one."""
    keys = [f"task.kind={__name__}:Counted", "rl.steps=800", "rl.prompts=12", "sandbox.workers=1", "compute.device=cpu"]
    assert list(unready([("mini/cleaner", keys, str(BASE), True, str(tmp_path / "run"))])) == []
    assert 12 <= len(DRAWN) < 60
