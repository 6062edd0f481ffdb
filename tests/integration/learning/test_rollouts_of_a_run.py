"""What a run asks of its rollouts and its engine, and what it notes before the first of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.schema import Recipe
from retcon.core.types import Segment, Trajectory, Turn
from retcon.train import rollouts
from retcon.train.rollouts import TrainingRollouts
from training import Ones

pytestmark = pytest.mark.torch


class Engine:
    """An engine that others' weights reach. events: what it was told."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def invalidate(self) -> None:
        self.events.append("forget")

    async def follow(self) -> None:
        self.events.append("follow")


class Carrying(Engine):
    version: int | None = None

    @asynccontextmanager
    async def suspended(self) -> Any:
        self.events.append("suspend")
        yield
        self.events.append("resume")


def of(recipe: Recipe, engine: Any = None, tasks: Any = None, events: Any = None) -> TrainingRollouts:
    weights: Any = SimpleNamespace(sync=lambda: events.append("weights"))
    context: Any = None
    return TrainingRollouts(recipe, context, tasks, engine, weights)


def test_new_weights_reach_the_engine_before_it_goes_on() -> None:
    events: list[str] = []
    engine = Carrying(events)
    asyncio.run(of(Recipe.model_validate({"rl": {"max_staleness": 2}}), engine, events=events).sync(7))
    assert events == ["weights", "forget", "follow"]
    assert engine.version == 7


@pytest.mark.parametrize(("kind", "around"), [(Carrying, ["suspend", "resume"]), (Engine, [])])
def test_an_engine_that_goes_on_afterwards_is_suspended(kind: type[Engine], around: list[str]) -> None:
    events: list[str] = []

    async def paused() -> None:
        async with of(Recipe(), kind(events)).paused():
            events.append("learn")

    asyncio.run(paused())
    assert events == [*around[:1], "learn", *around[1:]]


def rollout(reward: float | None) -> Trajectory:
    turns = (Turn((Segment("sampled", "abc", (2, 3, 4), (-1.0,) * 3),), stop="answer"),)
    return Trajectory("t/0/1/0", "t", (Segment("prompt", "p", (1,)),), turns, reward=reward)


def evaluated(monkeypatch: pytest.MonkeyPatch, *groups: Sequence[float | None]) -> dict[str, float | None]:
    async def rollout_groups(*_: object, **__: object) -> list[list[Trajectory]]:
        return [[rollout(reward) for reward in rewards] for rewards in groups]

    monkeypatch.setattr(rollouts, "rollout_groups", rollout_groups)
    monkeypatch.setattr(rollouts, "build_evaluation_context", lambda *_: None)
    return asyncio.run(of(Recipe(), tasks=Ones()).evaluated())


def test_a_pass_is_a_reward_above_zero_and_every_problem_weighs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three passes; then the one that no fault took; of the third problem nothing is known."""
    found = evaluated(monkeypatch, [1.0, 0.0, -1.0], [None, 0.5], [None], [1.0] * 34)
    assert found == {
        "eval_pass_rate": pytest.approx((1 / 3 + 1 + 1) / 3), "eval_failed_calls": 0.0,
        "eval_first_try_failure_rate": None, "eval_tokens": 3.0, "eval_rollouts": 38,
    }  # fmt: skip


def test_of_an_evaluation_that_faults_took_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or took more than one rollout in twenty of."""
    for rewards, left in (([None, None], 0), ([1.0] * 37 + [None] * 3, 37)):
        lost = evaluated(monkeypatch, rewards)
        assert lost == {**dict.fromkeys(lost), "eval_rollouts": left}
