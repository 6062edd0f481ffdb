"""A run's stages and one step of it, on their own: in which order their parts come, what each is given, and what a
step says of itself.

Engine, trainer and course are notebooks here; rollouts, their figures, selection and the recipe are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.schema import Recipe, stages_of
from retcon.core.types import Segment, Trajectory, Turn
from retcon.train import rl
from retcon.train.kernels.computing import Computing
from retcon.train.prompts import Drawn, selection_metrics
from retcon.train.rollouts import staleness
from retcon.train.update import rate_of
from retcon.train.watch import branch_metrics

pytestmark = pytest.mark.torch
SMALL: dict[str, Any] = {"prompts": 2, "group": 2, "steps": 30}


def rollout(index: int, reward: float, tokens: int) -> Trajectory:
    written = Segment("sampled", "a" * tokens, tuple(range(tokens)), (-1.0,) * tokens, (7,) * tokens)
    return Trajectory(f"t/0/1/{index}", "t", (Segment("prompt", "p", (1,)),), (Turn((written,), stop="answer"),),
                      reward=reward, stop="answer")  # fmt: skip


class Step:
    """One step, and what was done in it. events: in that order. told: its line of metrics. given: what the update, the
    log, the curve's evaluation and the course were given."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, sections: Mapping[str, Any], *, done: int = 8, stage: int = 0,
        ends: bool = False, fails: BaseException | None = None, events: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.recipe = Recipe.model_validate({"select": {"dynamic": False}, **sections})
        self.events: list[str] = [] if events is None else events
        self.given: dict[str, Any] = {}
        self.kept: list[tuple[int, list[str]]] = []
        self.stage = stages_of(self.recipe)[stage]
        self.drawn = Drawn()
        for lengths in ((2, 9), (4, 4)):
            group = [rollout(n, 1.0, tokens) for n, tokens in enumerate(lengths)]
            self.drawn.add(group, group[::-1])
        clock = iter((1.0, 3.50004, 8.75008, 11.50004))  # where it begins, has rolled out, has learnt, and has synced
        monkeypatch.setattr(rl, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        monkeypatch.setattr(rl, "draw_groups", self._draw)
        monkeypatch.setattr(rl, "update", self._update)
        monkeypatch.setattr(rl, "beside", self._beside)
        monkeypatch.setattr(rl, "_held_out", self._held_out)
        self._fails, self._ends, self._count = fails, ends, 3
        cost = SimpleNamespace(cpu_s=5.5)
        trainer: Any = SimpleNamespace(
            step=done, save=lambda: self.events.append("save"), interruptible=self._interruptible, cost=cost,
            done=self._done, model="model", optimizer="optimizer", computing=Computing(),
        )  # fmt: skip
        run: Any = SimpleNamespace(keep_trajectories=lambda step, made: self.kept.append((step, [t.id for t in made])))
        reference: Any = "reference"
        nothing: Any = None
        stretch = rl.Stretch(run, trainer, nothing, nothing, self.stage, reference)
        engine = SimpleNamespace(stats=self)
        rollouts = SimpleNamespace(
            recipe=self.stage.recipe, engine=engine, paused=self._paused, sync=self._sync,
            rest=lambda: self.events.append("rest"),
        )  # fmt: skip
        stream: Any = SimpleNamespace(rollouts=rollouts)
        course: Any = SimpleNamespace(tell_idling=self._idling, ends_with=self._ends_with, drift_after=self._drift)
        self.told = asyncio.run(rl._step(stretch, stream, course))
        assert self.given["done"] == {"drawn": 2, "stage": stage + 1, "cost": cost}

    async def _draw(self, stream: object, *, step: int) -> Drawn:
        self.events.append(f"draw {step}")
        self._count += 4  # of the engine's: this step's
        if self._fails is not None:
            raise self._fails
        return self.drawn

    def since(self, before: Step) -> Any:
        """In the place of the engine's counters, of which a step keeps a copy."""
        return SimpleNamespace(metrics=lambda: {"calls": self._count - before._count})

    def _update(self, model: str, optimizer: str, samples: list[Any], section: object, **named: Any) -> dict[str, Any]:
        self.events.append("update")
        self.given["update"] = {"model": model, "optimizer": optimizer, "samples": samples, **named}
        return {"loss": 0.25}

    async def _beside(self, work: Any) -> Any:
        self.events.append("beside")
        return work()

    async def _held_out(self, stretch: object, stream: object, step: int, *, last: bool) -> dict[str, Any]:
        self.events.append("held out")
        self.given["held out"] = (step, last)
        return {"eval_pass_rate": 0.5}

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self.events.append("no interrupt")
        yield
        self.events.append("interrupt")

    @asynccontextmanager
    async def _paused(self) -> Any:
        self.events.append("pause")
        yield
        self.events.append("go on")

    async def _sync(self, step: int) -> None:
        self.events.append(f"sync {step}")

    def _idling(self, made: Mapping[str, Any]) -> None:
        self.given["idling"] = made["rollouts"]

    def _ends_with(self, made: Mapping[str, Any], seconds: float) -> bool:
        self.given["ends"] = (made["rollouts"], seconds)
        return self._ends

    def _drift(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return {"drift": made["rollouts"]}

    def _done(self, metrics: dict[str, Any], **named: Any) -> dict[str, Any]:
        self.given["done"] = named
        return metrics


def test_rollouts_rest_while_the_weights_change_and_go_on_with_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Step(monkeypatch, {"rl": SMALL})
    assert found.events == [
        "draw 9", "no interrupt", "pause", "rest", "update", "sync 9", "go on", "held out", "interrupt",
    ]  # fmt: skip


def test_a_run_whose_rollouts_come_ahead_learns_beside_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Step(monkeypatch, {"rl": {**SMALL, "max_staleness": 1}})
    assert found.events[3:6] == ["rest", "beside", "update"]
    assert found.told.items() >= staleness(found.drawn.kept, 9).items()
    assert found.told["staleness_mean"] == 1.0


def test_a_step_without_rollouts_saves_the_last_whole_step_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Step(monkeypatch, {"rl": SMALL}, fails=KeyboardInterrupt(), events=events)
    assert events == ["draw 9", "save"]


@pytest.mark.parametrize(("kl", "reference"), [(0.1, "reference"), (0.0, None)])
def test_the_update_is_of_what_was_kept(kl: float, reference: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Step(monkeypatch, {"rl": {**SMALL, "kl": kl}, "rollout": {"temperature": 0.5}})
    given = found.given["update"]
    assert (given["model"], given["optimizer"], given["step"], given["seed"]) == ("model", "optimizer", 9, 0)
    assert given["reference"] == reference
    assert [len(sample.ids) for sample in given["samples"]] == [10, 3, 5, 5]
    assert given["computing"] == replace(Computing(), temperature=0.5)
    assert given["lr"] == rate_of(found.recipe.rl, 9, (0, 30))


def test_a_step_says_what_it_rolled_out_learnt_and_how_long_each_part_took(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Step(monkeypatch, {"rl": SMALL})
    told = found.told
    assert "stage" not in told
    assert (told["rollouts"], told["total_tokens"], told["loss"], told["calls"]) == (4, 23, 0.25, 4)
    assert (told["drift"], told["eval_pass_rate"]) == (4, 0.5)
    assert told.items() >= selection_metrics(found.recipe, found.drawn).items()
    assert not {"staleness_mean", *branch_metrics(found.drawn.made)} & told.keys()
    seconds = {name: value for name, value in told.items() if name.endswith("_seconds")}
    parts = {"rollout_seconds": 2.5, "train_seconds": 5.25, "sync_seconds": 2.75}
    assert {name: seconds[name] for name in parts} == parts
    assert seconds["step_seconds"] == 10.5
    assert told["tokens_per_second"] == 2.2  # 23 / 10.50004 = 2.19
    assert found.given["idling"] == 4


@pytest.mark.parametrize(("done", "kept"), [(9, True), (0, True), (29, True), (8, False), (10, False)])
def test_the_first_the_last_and_every_tenth_step_keep_their_rollouts(
    done: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Step(monkeypatch, {"rl": SMALL}, done=done)
    made = [t.id for group in found.drawn.made for t in group]
    assert found.kept == ([(done + 1, made)] if kept else [])


def test_a_stage_keeps_its_first_and_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [{"name": "one", "steps": 13}, {"name": "two", "steps": 17}]
    assert Step(monkeypatch, {"rl": SMALL, "stages": stages}, done=12).kept == []
    second = Step(monkeypatch, {"rl": SMALL, "stages": stages}, done=13, stage=1)
    assert ([step for step, _ in second.kept], second.told["stage"]) == ([14], 2)
    assert Step(monkeypatch, {"rl": SMALL, "stages": stages}, done=14, stage=1).kept == []


@pytest.mark.parametrize(
    ("done", "ends", "last"), [(8, False, False), (8, True, True), (29, False, True), (28, False, False)]
)
def test_the_last_step_is_that_of_the_recipe_or_the_one_that_the_run_ends_with(
    done: int, ends: bool, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Step(monkeypatch, {"rl": SMALL}, done=done, ends=ends)
    assert found.given["held out"] == (done + 1, last)
    assert found.given.get("ends") == (None if done == 29 else (4, 5.5)), "the recipe's last step asks no more"


def test_a_recipe_that_branches_says_how_its_groups_did(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Step(monkeypatch, {"rl": SMALL, "strategy": {"kind": "arpo", "initial": 1}})
    assert found.told.items() >= branch_metrics(found.drawn.made).items()


def test_groups_are_reported_flat_by_what_is_learnt_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rollouts that are right, one comes near the limit, and is punished for it."""
    near = {"rl": {**SMALL, "algorithm": "dapo", "overlong_buffer": 8}, "rollout": {"max_tokens": 16}}
    assert Step(monkeypatch, near).told["same_reward"] == 0.5
    assert Step(monkeypatch, {"rl": SMALL, "rollout": {"max_tokens": 16}}).told["same_reward"] == 1.0


class Stages:
    """A run of two stages of 13 and 17 steps, the second with another optimiser and a penalty to the reference.
    events: what was done. over: the step after which the course has the run end."""

    longest = 77

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, done: int, over: int = 99, reference: bool = True
    ) -> None:  # fmt: skip
        second = {"name": "two", "steps": 17, "optimizer": "new", "rl": {"kl": 0.1}}
        self.recipe = Recipe.model_validate({"rl": SMALL, "stages": [{"name": "one", "steps": 13}, second]})
        self.events: list[Any] = []
        self.step, self.end, self.needs_reference = done, over, reference
        self.drawn = (4, 2)
        monkeypatch.setattr(rl, "Course", self._course)
        monkeypatch.setattr(rl, "open_rollouts", self._open)
        monkeypatch.setattr(rl, "GroupStream", self._stream)
        monkeypatch.setattr(rl, "_step", self._one)
        run: Any = SimpleNamespace(checkpoint=lambda step: f"checkpoint {step}")
        own: Any = self
        folder: Any = "tokenizer"
        asyncio.run(rl._train(run, own, folder, own, None))

    def _course(self, section: object, history: object) -> Stages.Course:
        assert (section, history) == (self.recipe.rl, "history")
        return self.Course(self)

    class Course:
        def __init__(self, run: Stages) -> None:
            self._run = run

        @property
        def over(self) -> bool:
            return self._run.step >= self._run.end

        def data_since(self, what: str) -> None:
            self._run.events.append(what)

        def add(self, line: Mapping[str, Any]) -> None:
            self._run.events.append(tuple(line.values()))

    def history(self) -> str:
        return "history"

    def reference(self) -> str:
        self.events.append("reference")
        return "reference"

    def engine_weights(self) -> str:
        return "weights"

    def after(self, step: int) -> list[tuple[Any, str]]:
        return [(stage, f"tasks of {stage.name}") for stage in stages_of(self.recipe) if stage.last > step]

    def prompts(self, stage: Any, drawn: object, checkpoint: str) -> tuple[object, ...]:
        return "prompts", stage.name, drawn, checkpoint

    def begin(self, section: Any, *, anew: bool) -> None:
        self.events.append(("begin", section.kl, anew))

    def data_since(self, stage: Any) -> str:
        return f"data of {stage.name}"

    def to_come(self) -> int:
        return 55

    @asynccontextmanager
    async def _open(
        self, recipe: Any, weights: str, tokenizer: str, tasks: str, *, reserved: int, version: int, least: int
    ) -> Any:
        assert (weights, tokenizer, reserved, least) == ("weights", "tokenizer", 55, 77)
        self.events.append(("open", recipe.rl.kl, tasks, version))
        yield "rollouts"

    @asynccontextmanager
    async def _stream(self, rollouts: str, prompts: tuple[object, ...], *, last: int) -> Any:
        assert rollouts == "rollouts"
        self.events.append((*prompts, last))
        yield "stream"

    async def _one(self, stretch: Any, stream: str, course: object) -> dict[str, Any]:
        assert (stretch.trainer, stretch.stages, stretch.tokenizer, stream) == (self, self, "tokenizer", "stream")
        assert isinstance(course, self.Course)
        assert stretch.run.checkpoint(1) == "checkpoint 1"
        self.step += 1
        return {"step": self.step, "stage": stretch.stage.name, "reference": stretch.reference}

    def save(self) -> None:
        self.events.append(f"save {self.step}")


def test_a_run_goes_on_in_the_stage_that_it_is_in_and_keeps_each_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Stages(monkeypatch, done=12)
    assert found.events[:8] == [
        "reference",
        ("begin", 0.0, False), "data of one", ("open", 0.0, "tasks of one", 12),
        ("prompts", "one", (4, 2), "checkpoint 12", 13), (13, "one", "reference"), "save 13",
        ("begin", 0.1, True),
    ]  # fmt: skip
    assert found.events[8:11] == [
        "data of two", ("open", 0.1, "tasks of two", 13), ("prompts", "two", (4, 2), "checkpoint 13", 30),
    ]  # fmt: skip
    assert found.events[11:] == [*((step, "two", "reference") for step in range(14, 31)), "save 30"]


def test_a_stage_that_goes_on_keeps_its_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Stages(monkeypatch, done=20).events[1] == ("begin", 0.1, False)


def test_a_run_that_needs_no_reference_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Stages(monkeypatch, done=28, reference=False)
    assert found.events[-3:] == [(29, "two", None), (30, "two", None), "save 30"]
    assert "reference" not in found.events


@pytest.mark.parametrize(("over", "last"), [(5, ["save 5"]), (13, ["save 13"])])
def test_a_run_that_is_over_begins_no_other_step_or_stage(
    over: int, last: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Stages(monkeypatch, done=3, over=over)
    assert found.step == over
    assert [event for event in found.events if isinstance(event, str) and event.startswith("save")] == last
