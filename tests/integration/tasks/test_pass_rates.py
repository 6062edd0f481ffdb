"""Measuring pass rates, and training with them: real engine, real sandbox."""

from __future__ import annotations

import asyncio
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.chat.chat import Chat
from retcon.chat.template import RenderError
from retcon.chat.tokenizer import ByteTokenizer
from retcon.chat.types import TextMessage
from retcon.cli.app import app
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, InfrastructureFault, RecipeError, SandboxUnavailable, TaskWarning
from retcon.core.types import Segment, Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate.difficulty import measure, run_difficulty
from retcon.store import jsonl
from retcon.store.fingerprint import fingerprint
from retcon.store.pass_rates import PassRate, PassRateFile, read_pass_rates
from retcon.tasks.registry import task_set, training_prompts
from retcon.tasks.types import Task, fingerprint_of
from retcon.train.prompts import PromptStream
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


class Unreachable(Ones):
    """The grader is down."""

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        raise InfrastructureFault("the judge is down")


def test_a_task_that_lost_rollouts_to_its_grader_is_not_told():
    told: list[tuple[str, int]] = []
    with pytest.raises(SandboxUnavailable, match=r"9 of 9 rollouts were lost .*the judge is down"):
        measured(lambda tasks, id: "\\boxed{none}", family=Unreachable(), told=told)
    assert told == [], "a rollout that nobody could grade is none that failed"


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


@pytest.mark.parametrize("own", [False, True], ids=["of the command", "of the recipe"])
def test_a_server_that_only_measures_is_no_part_of_the_advice(own: bool, base: Path, tmp_path: Path) -> None:
    out, url, name = tmp_path / "rates.jsonl", "http://127.0.0.1:9/v1", "quickstart/baseline"
    with PassRateFile(out) as added:  # all that is asked for, so that no server is
        for task in islice(training_prompts(task_set("numbers"), 0), 2):
            added.add(PassRate(task.id, f"{url} x", 1, 8))
    served = ["engine.kind=openai", f"engine.url={url}", "engine.model=x"]
    if own:
        name, served = str(tmp_path / "own.toml"), []
        Path(name).write_text(f"[engine]\nkind = 'openai'\nurl = '{url}'\nmodel = 'x'\n")
    words = ["difficulty", str(base), name, *served, "rollout.max_tokens=2000", "--tasks", "2", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    advised = shlex.split(done.stdout.partition("try: retcon train ")[2])
    changes = ["rollout.max_tokens=2000", "engine.kind=local", f"select.pass_rates={out}"]
    assert advised == [name, *changes, "--from", str(base)]
    recipe = load_recipe(name, changes)
    recipe.engine.check_training(recipe)


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


def test_rates_of_other_problems_under_the_same_ids_and_of_another_harness_are_reported(base, tmp_path):
    drawn = list(islice(training_prompts(Rated(), small_recipe(base).run.seed), 4))
    own = [PassRate(task.id, "m", 4, 8, fingerprint_of([task]), "") for task in drawn]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained_on(base, tmp_path, own) == ["t0", "t1", "t2", "t3"]
    (tmp_path / "rates.jsonl").unlink()
    other = [*own[:2], *(PassRate(task.id, "m", 4, 8, "another question") for task in drawn[2:])]
    with pytest.warns(TaskWarning, match=r"rates\.jsonl: 2 of 4 tasks have changed since .*\(t2 is the first\)"):
        trained_on(base, tmp_path, other)
    (tmp_path / "rates.jsonl").unlink()
    with pytest.warns(TaskWarning, match=r"measured with rollout\.harness = a:b 1f, and this run has no harness: `ret"):
        trained_on(base, tmp_path, [PassRate(f"t{n}", "m", 4, 8, harness="a:b 1f") for n in range(4)])


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


class Strict(Chat):
    """By a template that has the user speak once."""

    def prompt(
        self, question: str, system: str | None = None, before: Sequence[TextMessage] = ()
    ) -> tuple[Segment, ...]:
        if before:
            raise RenderError("the file: roles must alternate")
        return super().prompt(question, system, before)


class AskedTwice(Rated):
    """As `Rated`, from t1 on with a message before the question."""

    def train(self, seed: int) -> Iterator[Task]:
        return (replace(t, before=() if t.id == "t0" else (("user", "Hi."),)) for t in super().train(seed))


@pytest.mark.parametrize(
    ("tasks", "room", "says"),
    [
        (AskedTwice(), 100, "^task t1: the file: roles must alternate$"),
        (Rated(), 1, r"^rollout\.max_tokens = 1: .* in 3 prompts in a row; [^;]*: raise rollout\.max_tokens$"),
    ],
)
def test_what_cannot_be_asked_is_reported_without_advice_about_rates(tasks, room, says, tmp_path, monkeypatch):
    monkeypatch.setattr("retcon.rollout.lengths.PATIENCE", 3)
    with PassRateFile(tmp_path / "rates.jsonl") as file:
        for rate in rates(0, 4):
            file.add(rate)
    recipe = TINY.model_copy(update={
        "rl": TINY.rl.model_copy(update={"prompts": 1, "steps": 1}),
        "rollout": TINY.rollout.model_copy(update={"max_tokens": room}),
        "select": TINY.select.model_copy(update={"pass_rates": str(tmp_path / "rates.jsonl")}),
    })  # fmt: skip
    with pytest.raises(RecipeError, match=says):
        PromptStream(recipe, tasks, chat=Strict(ByteTokenizer()), model="m")
