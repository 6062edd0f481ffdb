"""Measuring pass rates, and training with them: real engine, real sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.cli.app import app
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, RecipeError, SandboxUnavailable
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate.difficulty import measure, run_difficulty
from retcon.store import jsonl
from retcon.store.fingerprint import fingerprint
from retcon.store.pass_rates import PassRate, PassRateFile, read_pass_rates
from retcon.tasks.registry import task_set, training_prompts
from retcon.tasks.types import Task
from retcon.train.rl import run_rl
from training import Ones, make_base, small_recipe

pytestmark = pytest.mark.torch
NUMBERS = load_recipe(None, ["rollout.max_tokens=2000", "sandbox.workers=1"])
TINY = load_recipe(None, ["rollout.max_tokens=100", "rollout.lookahead_tokens=0", "sandbox.workers=1"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("difficulty") / "base")


def measured(reply, family=None, told=None) -> list[tuple[str, int]]:
    """What three rollouts of each of three tasks, answered by `reply`, are told as. told: gets it as it comes."""
    tasks = list(islice(training_prompts(task_set("numbers"), NUMBERS.run.seed), 3))
    tokenizer, told = ByteTokenizer(), [] if told is None else told
    run = measure(
        NUMBERS,
        tasks,
        rollouts=3,
        engine=ScriptedEngine(tokenizer, lambda id, text, n: reply(tasks, id)),
        chat=Chat(tokenizer),
        on_task=lambda task, passed: told.append((task, passed)),
        family=family,
    )
    asyncio.run(run)
    return sorted((next(n for n, t in enumerate(tasks) if t.id == task), passed) for task, passed in told)


def test_each_task_is_reported_once_with_what_passed():
    def reply(tasks, id):
        task, _, index = id.rsplit("/", 2)
        n = next(n for n, t in enumerate(tasks) if t.id == task)
        return f"\\boxed{{{tasks[n].answer if int(index) < n else 'none'}}}"

    assert measured(reply) == [(0, 0), (1, 1), (2, 2)]


def test_a_task_that_lost_a_rollout_is_not_told_and_too_many_lost_end_it():
    def reply(tasks, id):
        if id == f"{tasks[1].id}/0/2":
            raise ConnectionError("gone")
        return "\\boxed{none}"

    with pytest.raises(SandboxUnavailable, match=r"^1 of 9 rollouts were lost .*gone; what was measured is kept"):
        measured(reply)


def asked(tasks: list[Task], *overrides: str, reply="\\boxed{none}", told=lambda *_: None) -> dict[str, int]:
    """The seeds of two rollouts of each task, by their ids. reply: of a rollout's id, or the same to all."""
    tokenizer = ByteTokenizer()
    engine = ScriptedEngine(tokenizer, (lambda id, text, n: reply(id)) if callable(reply) else [reply])
    recipe = load_recipe(None, ["rollout.max_tokens=2000", "sandbox.workers=1", *overrides])
    asyncio.run(measure(recipe, tasks, rollouts=2, engine=engine, chat=Chat(tokenizer), on_task=told))
    return {id: params.seed for (id, _), params in zip(engine.seen, engine.params, strict=True)}


def test_an_interrupted_measurement_goes_on_and_measures_nothing_twice(base, tmp_path):
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    out, whole = tmp_path / "some" / "rates.jsonl", tmp_path / "whole.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_difficulty(TINY, base, out, tasks=5, rollouts=2, on_progress=stop)
    kept = out.read_bytes()
    assert len(kept.splitlines()) == 2

    told: list[tuple[int, int]] = []
    rates = run_difficulty(TINY, base, out, tasks=5, rollouts=2, on_progress=lambda *at: told.append(at))
    assert out.read_bytes().startswith(kept)
    assert told == [(3, 5), (4, 5), (5, 5)]
    assert rates == run_difficulty(TINY, base, whole, tasks=5, rollouts=2), "as if it had never been stopped"
    assert {one.model for one in rates} == {fingerprint(base)}

    before = out.read_bytes()
    assert run_difficulty(TINY, base, out, tasks=5, rollouts=2) == rates
    assert out.read_bytes() == before
    assert [r.rollouts for r in run_difficulty(TINY, base, out, tasks=2, rollouts=3)] == [3, 3], "more were asked for"
    assert len(list(read_pass_rates(out))) == 7


def test_the_command_tells_how_hard_the_tasks_are_and_what_to_do_next(base, tmp_path):
    out = tmp_path / "rates.jsonl"
    sections = ("rollout.max_tokens=100", "rollout.lookahead_tokens=0", "sandbox.workers=1")
    words = ["difficulty", str(base), *sections, "--tasks", "3", "--rollouts", "2", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "0 of 2" in done.stdout, "an untrained model solves nothing"
    assert f"3 tasks measured, 0 within [0.01, 0.99]: {out}" in done.stdout
    assert "would have no task: where none is solved, a cold start" in done.stdout
    assert "try:" not in done.stdout, "that training would be refused"
    assert len(list(read_pass_rates(out))) == 3
    all_of_them = CliRunner().invoke(app, [*words, "select.min_pass_rate=0"])
    assert "3 within [0, 0.99]" in all_of_them.stdout
    assert "try: retcon train RECIPE" in all_of_them.stdout
    assert f"select.pass_rates={out}" in all_of_them.stdout


class Rated(Ones):
    """A task set whose tasks have short names: t0, t1, …"""

    def train(self, seed: int) -> Iterator[Task]:
        return (replace(task, id=f"t{n}") for n, task in enumerate(super().train(seed)))


def trained_on(base: Path, tmp_path: Path, rates: list[PassRate], **select: object) -> list[str]:
    """The tasks of a run's two steps, for a file to which these rates are added."""
    file, out = tmp_path / "rates.jsonl", tmp_path / "run"
    with PassRateFile(file) as added:
        for rate in rates:
            added.add(rate)
    recipe = small_recipe(
        base,
        rl={"prompts": 2, "group": 2, "steps": 2},
        rollout={"max_tokens": 16},
        repair={"kind": "none"},
        select={"pass_rates": str(file), **select},
    )
    run_rl(recipe, base, out, tasks=Rated())
    steps = [jsonl.read(out / f"trajectories/step-00000{n}.jsonl") for n in (1, 2)]
    return [t.task for step in steps for t in step if t.provenance.index == 0]


def rates(*passed: int, model: str = "m") -> list[PassRate]:
    return [PassRate(f"t{n}", model, p, 8) for n, p in enumerate(passed)]


def test_training_draws_only_what_lies_within_the_bounds(base, tmp_path):
    assert trained_on(base, tmp_path, rates(0, 8, 4, 1, 8, 7, 0, 3)) == ["t2", "t3", "t5", "t7"]


def test_the_rates_of_the_model_that_is_trained_come_first(base, tmp_path):
    own = rates(1, 1, 0, 0, 1, 1, model=fingerprint(base))
    assert trained_on(base, tmp_path, [*rates(1, 1, 1, 1), *own]) == ["t0", "t1", "t4", "t5"]


def test_a_run_goes_on_with_more_rates_but_not_with_others(base, tmp_path):
    trained_on(base, tmp_path, rates(0, 8, 4, 1, 8, 7, 0, 3))
    assert trained_on(base, tmp_path, [PassRate("t8", "m", 8, 8)]) == ["t2", "t3", "t5", "t7"]
    with pytest.raises(CheckpointError, match="was started from other pass rates"):
        trained_on(base, tmp_path, [PassRate("t2", "m", 8, 8), PassRate("t9", "m", 4, 8)])


@pytest.mark.parametrize(
    ("measured", "select", "part"),
    [
        (
            rates(4, 0, 4, 4),
            {},
            "task t4 has no pass rate. The run can need 4 tasks within the bounds, and 3 come before",
        ),
        (rates(4, 4, 4, 4), {"dynamic": True, "max_extra": 0.5}, "The run can need 6 tasks"),
        (rates(0, 0, 0, 0, 0, 0, 0, 0, 8, 0), {}, "t10 has no pass rate"),
        ([], {}, "it contains no pass rate"),
        ([*rates(1), *rates(1, model="n")], {}, "rates of 2 models (m, n), none of which is the one"),
    ],
)
def test_rates_that_do_not_serve_are_refused_before_anything_is_made(base, tmp_path, measured, select, part):
    with pytest.raises(RecipeError) as caught:
        trained_on(base, tmp_path, measured, **select)
    assert part in str(caught.value)
    assert not (tmp_path / "run").exists()
