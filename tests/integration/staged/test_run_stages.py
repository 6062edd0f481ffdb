"""The stages of a run before any of them begins: their data and what they draw, what they wait for, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.schema import Recipe, Stage, TaskSection
from retcon.core.errors import RecipeError, RecordError
from retcon.core.seeds import derive
from retcon.runs.folder import NOT_THERE
from retcon.tasks.types import Task
from retcon.train.settling import resolve_stages
from retcon.train.stages import RunStages
from training import Ones, make_base, small_recipe

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Letters(Ones):
    """A task for each letter. held: those of the evaluation; in capitals they have ids of their own alone. leaking: the
    seed of the run whose stream begins with the first of them."""

    letters: str = ""
    held: str = ""
    leaking: int | None = None

    def train(self, seed: int) -> Iterator[Task]:
        leaks = self.leaking is not None and seed == derive("prompts", self.leaking)
        return (Task(letter, f"{letter}?", letter) for letter in self.held[:leaks] + self.letters)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [Task(one if one.isupper() else f"held/{one}", f"{one.lower()}?", one.lower()) for one in self.held]


class LettersSection(TaskSection):
    letters: str = "abcdefgh"
    held: str = "yz"
    leaking: int | None = None
    said: str | None = None

    def build(self, count_tokens: object = None) -> Letters:
        return Letters(system=self.said, letters=self.letters, held=self.held, leaking=self.leaking)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("stages") / "base")


A, B = {"name": "a", "steps": 1}, {"name": "b", "steps": 2}
OTHER: dict[str, object] = {"task": {"letters": "stuvw"}}


def recipe_of(base: Path, *stages: dict[str, Any], **sections: dict[str, object]) -> Recipe:
    """With two prompts a step. stages: each with its steps."""
    rl = {"prompts": 2, "steps": sum(stage["steps"] for stage in stages) or 2, **sections.pop("rl", {})}
    task = {"kind": f"{__name__}:LettersSection", **sections.pop("task", {})}
    sandbox = {"workers": 1, "output_chars": 50}
    small = small_recipe(base, **{"sandbox": sandbox, **sections, "rl": rl})
    values = small.model_dump(mode="json", exclude_unset=True)
    return Recipe.model_validate({**values, "task": task, "stages": stages})


def run_of(base: Path, *stages: dict[str, Any], **sections: dict[str, object]) -> tuple[list[Stage], RunStages]:
    settled = resolve_stages(recipe_of(base, *stages, **sections), base)
    return [stage for stage, _ in settled.each], RunStages(settled, base, model="m")


def drawn(run: RunStages, stage: Stage, before: Sequence[int], most: int = 3) -> str:
    return "".join(task.id for task in islice(run.prompts(stage, before, Path("model")), most))


def test_a_stage_draws_on_in_its_data_after_those_before_it_that_have_the_same(base: Path) -> None:
    c, d = {"name": "c", "steps": 1, **OTHER}, {"name": "d", "steps": 1}
    (a, b, other, last), run = run_of(base, A, B, c, d)
    assert drawn(run, a, []) == "abc"
    assert drawn(run, a, [1]) == "bcd"
    assert drawn(run, b, [2]) == "cde"
    assert drawn(run, b, [2, 3]) == "fgh"
    assert drawn(run, other, [2, 4]) == "stu"
    assert drawn(run, other, [2, 4, 1]) == "tuv"
    assert drawn(run, last, [2, 4, 2]) == "gha"
    assert run.inputs.keys() == {"tasks", "tasks of stage 3, c"}
    assert run.inputs["tasks"] != run.inputs["tasks of stage 3, c"]
    assert [run.data_since(stage) for stage in (a, b, other, last)] == [0, 0, 3, 4]
    assert [stage.name for stage, _ in run.after(0)] == ["a", "b", "c", "d"]
    assert [stage.name for stage, _ in run.after(1)] == ["b", "c", "d"]
    assert [stage.name for stage, _ in run.after(2)] == ["b", "c", "d"]
    assert list(run.after(5)) == []
    letters = [next(tasks.train(0)).id for _, tasks in run.after(0)]
    assert letters == ["a", "a", "s", "a"], "the tasks of each"


def test_of_several_stages_the_steps_so_far_are_looked_at_before_work_starts(base: Path, tmp_path: Path) -> None:
    """Rates that serve the first alone are refused, in the name of the stage that would need more."""
    rates = tmp_path / "rates.jsonl"
    lines = ({"task": letter, "model": "m", "passed": 1, "rollouts": 2} for letter in "abcde")
    rates.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rated = {"select": {"pass_rates": str(rates)}}
    run_of(base, A, {**B, "steps": 1}, **rated)
    said = r"^stage 2, b: .*task f has no pass rate\. The run can need 6 tasks .* and 5 come before"
    with pytest.raises(RecipeError, match=said):
        run_of(base, A, B, **rated)
    with pytest.raises(RecipeError, match=r"^select\.pass_rates = "):
        run_of(base, **rated, rl={"steps": 3})


def test_a_later_stage_waits_for_its_pass_rates_and_the_first_one_does_not(base: Path, tmp_path: Path) -> None:
    rates = tmp_path / "rates.jsonl"
    rated = {"select": {"pass_rates": str(rates), "min_pass_rate": 0.5}}
    (a, b, other), run = run_of(base, A, {**B, **rated}, {"name": "c", "steps": 1, **OTHER, **rated})
    assert [run.waits(stage) for stage in (a, b, other)] == [False, True, True]
    assert run.inputs["pass rates of stage 2, b"] == NOT_THERE
    assert [task.id for task in islice(run.stream(b).after(0), 3)] == ["a", "b", "c"], "as far as anybody knows"
    assert [task.id for task in islice(run.stream(other).after(0), 3)] == ["s", "t", "u"]
    said = r"^stage 2, b: select\.pass_rates = .* `retcon difficulty model RECIPE --stage b --tasks N"
    with pytest.raises(RecipeError, match=said):
        drawn(run, b, [2])
    lines = ({"task": one, "model": "m", "passed": int(one in "bdfh"), "rollouts": 2} for one in "abcdefgh")
    rates.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert drawn(run, b, [2]) == "dfh", "after the first two, of which the stage before had both"
    assert not run.waits(b)
    rates.unlink()
    assert drawn(run, b, [2]) == "dfh", "by the rates that were read"
    with pytest.raises(RecordError, match="does not exist"):
        run_of(base, {**A, **rated}, B)


LEAKING = {"leaking": 5}


@pytest.mark.parametrize(
    ("stages", "task", "told"),
    [
        ((), LEAKING, "the two must not overlap"),
        ((A, {**B, "task": {"letters": "stuvw", **LEAKING}}), {}, "would train on 1 of the evaluation problems"),
    ],
    ids=["of its own tasks", "of a stage's"],
)
def test_what_a_run_refuses_is_what_its_own_seed_draws(
    stages: tuple[dict[str, Any], ...], task: dict[str, object], told: str, base: Path
) -> None:
    run_of(base, *stages, task=task, run={"seed": 4})
    with pytest.raises(RecipeError, match=told):
        run_of(base, *stages, task=task, run={"seed": 5})
