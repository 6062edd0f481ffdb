"""What is measured is right or wrong, whatever scores are worth in training: `task.rewards = "graded"`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from keys.acting import Lab, run
from keys.rollouts import scripted
from retcon.build import open_graders
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate.runner import evaluate, settings_of
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.types import Lesson, Task
from retcon.train.demos.making import demonstrations

pytestmark = pytest.mark.torch
RECIPE = load_recipe(
    None, ["evaluate.problems=2", "evaluate.samples=2", "evaluate.every_samples=2", "rollout.max_tokens=2000"]
)


@pytest.fixture(params=["graded", "signed"])
def tasks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataTasks:
    """Of two problems, whose grader gives a tenth to what has a digit, and all to `42`."""
    monkeypatch.chdir(tmp_path)
    Path("tenths.py").write_text("def tenth(reply): return 1.0 if '42' in reply else 0.1")
    rows = [f'{{"id": "{n}", "question": "What is 6 times {n}?", "answer": "42"}}\n' for n in (7, 8)]
    Path("problems.jsonl").write_text("".join(rows))
    section = FileTaskSettings(
        path="problems.jsonl", evaluation_share=1.0, grader="tenths:tenth", rewards=request.param
    )
    return section.open()


def replied(id: str, text: str, n: int) -> str:
    """One rollout of the first problem is right."""
    return "42" if "/7/" in id and id.endswith("/1") else "4"


def test_an_evaluation_counts_what_is_right(tasks: DataTasks) -> None:
    tokenizer = ByteTokenizer()
    work = evaluate(
        RECIPE, tasks.evaluation(2, 0), name="t1", params=settings_of(RECIPE)["t1"],
        engine=ScriptedEngine(tokenizer, replied), chat=Chat(tokenizer), on_progress=lambda _: None, family=tasks,
    )  # fmt: skip
    _, setting = asyncio.run(work)
    assert [(p.task, p.passed) for p in setting.problems] == [("problems/7", 1), ("problems/8", 0)]


def test_so_does_the_curve_of_held_out_problems(tasks: DataTasks, tmp_path: Path) -> None:
    async def measured() -> dict[str, float | None]:
        async with scripted(RECIPE, Lab(tmp_path), replied) as rollouts, open_graders(tasks) as graders:
            return await replace(rollouts, tasks=graders.rewarded, judged=graders.judged).evaluated()

    assert run(measured())["eval_pass_rate"] == pytest.approx(1 / 4)


def test_so_do_those_who_take_what_a_teacher_wrote_for_right(tasks: DataTasks, tmp_path: Path) -> None:
    """A tenth of a reward is above 0, and what has it is wrong."""
    given = ["demos.kind=teacher", "demos.keep=right", "sft.demonstrations=2", "rollout.max_tokens=2000"]
    recipe = load_recipe(None, given)
    said = {"problems/7": "It is 42.", "problems/8": "It is 4."}

    class Taught(DataTasks):
        """A teacher that knows one of them."""

        def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
            return iter([(task, lambda *_, said=said[task.id]: (said, None)) for task in self.evaluation(2, 0)])

    taught = Taught(**{field.name: getattr(tasks, field.name) for field in fields(tasks)})
    made = asyncio.run(demonstrations(recipe, Chat(ByteTokenizer()), tasks=taught))
    assert [one.task for one in made] == ["problems/7"]
