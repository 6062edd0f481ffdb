"""Rollouts for TRL's trainer, without TRL: what happens to those that an infrastructure fault ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from playing import LIMITS, TASK, call
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import Trajectory
from retcon.engine.scripted import ScriptedEngine
from retcon.models.placing import start_model
from retcon.plugins.trl import ROUNDS, Rollouts, _told, prompt_of
from retcon.rollout.context import RolloutContext
from retcon.tasks.types import Task
from retcon.tools.scripted import Answer, ScriptedTool
from retcon.train.rollouts import TrainingRollouts
from training import Ones, make_base

pytestmark = pytest.mark.torch


class Right(Ones):
    def grade(self, task: Any, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=1.0)


def group_of(count: int, *, lost: int, base: Path) -> list[Trajectory]:
    """A group of rollouts of one call each, of which the first `lost` calls meet a fault of the tool."""
    calls = iter(range(1000))

    def answer(_code: str) -> Answer:
        return ("gone", "infrastructure", None) if next(calls) < lost else ("1", "ok", None)

    def reply(_id: str, prompt: str, _n: int) -> str:
        return "It is 1." if "<|im_start|>tool" in prompt else call("print(1)")

    tokenizer = ByteTokenizer()
    context = RolloutContext(
        ScriptedEngine(tokenizer, reply), Chat(tokenizer), {"python": ScriptedTool(answer)}, LIMITS
    )
    with Rollouts("quickstart/baseline", model=base) as rollouts:
        rollouts._know([TASK])
        made: Any = TrainingRollouts(rollouts.recipe, context, Right(), context.engine, None)  # type: ignore[arg-type]
        return asyncio.run(rollouts._group(TASK, count, made, 0, 7, True))


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_rollouts_that_a_fault_took_are_made_again_one_by_one_too(lost: int, tmp_path: Path) -> None:
    made = group_of(3, lost=lost, base=make_base(tmp_path / "base", positions=1024))
    assert [t.reward for t in made] == [1.0, 1.0, 1.0]
    assert all(t.stop == "answer" for t in made)


def test_tasks_of_one_question_are_told_apart(tmp_path: Path) -> None:
    """Such as those of an environment, or after other worked examples."""
    ada, bob = (
        Task(f"who/{name}", "Who?", name, before=(("user", "Hi."), ("assistant", name))) for name in ("Ada", "Bob")
    )
    base = make_base(tmp_path / "base", positions=1024)
    with Rollouts("quickstart/baseline", model=base) as rollouts:
        rollouts._know([ada, bob, TASK])
        assert [rollouts._task(*_told(prompt_of(task))) for task in (ada, bob, TASK)] == [ada, bob, TASK]
        assert rollouts._task(*_told(TASK.question)) == TASK
        with pytest.raises(RecipeError, match="2 tasks of numbers have the question of a prompt that names none of th"):
            rollouts._task(*_told("Who?"))
        with pytest.raises(RecipeError, match="one message of the user"):
            _told([{"role": "system", "content": "x"}, *prompt_of(ada)])


def test_a_recipe_in_stages_is_refused() -> None:
    with pytest.raises(RecipeError, match="mini/stages/rstar2 has stages, and TRL's trainer has none"):
        Rollouts("mini/stages/rstar2")


def test_where_faults_do_not_end_nothing_is_learnt(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFault, match=f"{ROUNDS} times over"):
        group_of(2, lost=1000, base=make_base(tmp_path / "base", positions=1024))


@pytest.mark.parametrize(
    ("overrides", "purified"),
    [
        (["repair.probability=0.0"], [0, 0]),
        (["repair.probability=1.0"], [4, 4]),
        (["repair.probability_schedule=[[1, 1.0], [2, 0.0]]"], [4, 0]),
        (["repair.probability=1.0", "repair.probes=1", "repair.least_probability=1.0"], [3, 3]),
    ],
)
def test_a_share_of_the_rollouts_is_purified_as_in_training(
    overrides: list[str], purified: list[int], tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    model: Any = start_model(base, 0)
    short = ["rollout.max_tokens=40", "rollout.lookahead_tokens=8", "sandbox.workers=1", "compute.device=cpu"]
    with Rollouts("quickstart/saar", [*short, *overrides], model=base) as rollouts:
        for step, count in enumerate(purified):
            trainer = SimpleNamespace(
                state=SimpleNamespace(global_step=step), accelerator=SimpleNamespace(process_index=0)
            )
            made = rollouts._wait(rollouts._rolled(["go"] * 4, model, trainer, True))
            assert sum(t.provenance.purified for t in made) == count


@pytest.mark.parametrize("key", ["rl.blame=0.5", "rl.dpo_beta=15", "rl.contrast=0.5"])
def test_a_loss_that_trl_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(RecipeError, match="TRL's loss knows nothing like it"):
        Rollouts("quickstart/saar", [key])
