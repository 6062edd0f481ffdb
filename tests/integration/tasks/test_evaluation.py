"""An evaluation over the scripted engine and the real sandbox."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, TaskSection
from retcon.core.errors import CheckpointError, InfrastructureFault, SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate import runner
from retcon.evaluate.result import PartialResults, Result, read_result, write_result
from retcon.evaluate.runner import evaluate, result_in, run_evaluation, settings_of
from retcon.store import jsonl
from retcon.tasks.registry import task_set
from retcon.tasks.types import Task

RECIPE = load_recipe(
    None,
    ["evaluate.problems=3", "evaluate.samples=4", "rollout.max_tokens=2000", "sandbox.workers=1", "repair.kind=saar"],
)
SERVERS = {"vllm": '["http://a:1", "http://b:1"]', "openai": "http://a:1/v1"}


def test_it_counts_raw_failures_with_purification_off() -> None:
    tasks = task_set("numbers").evaluation(3, RECIPE.evaluate.seed)
    answers = {task.id: task.answer for task in tasks}

    def reply(request_id: str, text: str, n: int) -> str:
        task, _, index = request_id.rsplit("/", 2)
        if n == 0:
            return "```python\nprint(nothing)\n```"
        right = task == tasks[0].id or index == "1"
        return f"so the answer is \\boxed{{{answers[task] if right else 'none'}}}"

    tokenizer = ByteTokenizer()
    engine = ScriptedEngine(tokenizer, reply)
    told: list[int] = []
    groups, setting = asyncio.run(
        evaluate(
            RECIPE,
            tasks,
            name="top_p",
            params=settings_of(RECIPE)["top_p"],
            engine=engine,
            chat=Chat(tokenizer),
            on_progress=told.append,
        )
    )
    assert [(p.task, p.samples, p.passed) for p in setting.problems] == [
        (tasks[0].id, 4, 4),
        (tasks[1].id, 4, 1),
        (tasks[2].id, 4, 1),
    ]
    assert {p.failed_calls for p in setting.problems} == {1.0}  # a repair would have tried again, and raised the count
    assert setting.failure_types == {"NameError": 12}
    assert setting.stops == {"answer": 12}
    assert not any(t.provenance.purified for group in groups for t in group)
    assert {(p.temperature, p.top_p) for p in engine.params} == {(1.0, 0.6)}
    assert told == list(range(1, 13))


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A folder with a finished evaluation of `tmp_path / "model"` under RECIPE."""
    out = tmp_path / "eval"
    out.mkdir()
    recipe = {k: v for k, v in RECIPE.model_dump(mode="json").items() if k not in ("repair", "select", "sft", "rl")}
    result = Result(str((tmp_path / "model").resolve()), recipe, {})
    engine = ScriptedEngine(ByteTokenizer(), ["I do not know"])
    for name, params in settings_of(RECIPE).items():
        groups, setting = asyncio.run(
            evaluate(
                RECIPE,
                task_set("numbers").evaluation(1, 0),
                name=name,
                params=params,
                engine=ScriptedEngine(engine.tokenizer, engine.replies),
                chat=Chat(engine.tokenizer),
                on_progress=lambda _: None,
            )
        )
        jsonl.write(out / f"trajectories-{name}.jsonl", groups[0])
        result = result.with_setting(name, setting)
    write_result(out / "result.json", result)
    return out


def eight_problems(folder: Path) -> Path:
    """Write problems.jsonl and a folder with a tokenizer, whose path is returned."""
    from training import build_tokenizer

    lines = (f'{{"question": "What is {n} plus 1?", "answer": "{n + 1}"}}\n' for n in range(8))
    (folder / "problems.jsonl").write_text("".join(lines))
    build_tokenizer().save_pretrained(folder / "model")
    return folder / "model"


def on_problems(file: Path, *changes: str) -> Recipe:
    """Two rollouts of each problem, all of which answer 4."""
    return load_recipe(
        None,
        ["task.kind=file", f'task.path="{file}"', "task.evaluation_share=1", "task.grader=exact",
         "engine.kind=scripted", r"engine.replies=['\boxed{4}']", "rollout.max_tokens=200",
         "rollout.lookahead_tokens=0", "sandbox.output_chars=100", "sandbox.workers=1", "evaluate.samples=2", *changes],
    )  # fmt: skip


@pytest.mark.torch
def test_one_that_was_interrupted_goes_on_with_the_problems_that_are_left(tmp_path: Path) -> None:
    model, file, out = eight_problems(tmp_path), tmp_path / "problems.jsonl", tmp_path / "eval"
    recipe = on_problems(file, "evaluate.top_p=1.0")
    told: list[int] = []

    def tell(done: int, total: int) -> None:
        told.append(done)
        if len(told) == 11:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run_evaluation(recipe, model, out, on_progress=tell)
    (begun,) = out.iterdir()
    kept = len(begun.read_text().splitlines()) - 1
    assert 0 < kept < 8
    file.rename(tmp_path / "kept.jsonl")
    file.write_text('{"question": "What is 2 plus 2?", "answer": "4"}\n')
    with pytest.raises(CheckpointError, match=r"eval holds an evaluation of other problems \("):
        run_evaluation(recipe, model, out)
    (tmp_path / "kept.jsonl").rename(file)
    with begun.open("a") as cut:
        cut.write('{"task": "problems/')
    told.clear()
    resumed = read_result(run_evaluation(recipe, model, out, on_progress=lambda done, _: told.append(done)))
    assert told == [*range(2 * kept + 1, 17), 16]
    assert sorted(path.name for path in out.iterdir()) == [
        "card.json", "card.md", "result.json", "trajectories-t1.jsonl",
    ]  # fmt: skip
    whole = read_result(run_evaluation(recipe, model, tmp_path / "whole"))
    assert resumed.settings["t1"].problems == whole.settings["t1"].problems
    cards = [json.loads((folder / "card.json").read_text()) for folder in (out, tmp_path / "whole")]
    assert cards[0] | {"cost": 0} == cards[1] | {"cost": 0}
    assert (cards[0]["rollouts"], cards[0]["tools"]) == (recipe.evaluate.samples, list(recipe.rollout.tools))
    assert resumed.pass1 == {"t1": 0.125}
    name = "trajectories-t1.jsonl"
    assert [t.id for t in jsonl.read(out / name)] == [t.id for t in jsonl.read(tmp_path / "whole" / name)]


@pytest.mark.torch
def test_more_problems_go_on_in_the_folder_of_fewer(tmp_path: Path) -> None:
    model, file, out = eight_problems(tmp_path), tmp_path / "problems.jsonl", tmp_path / "eval"

    def recipe(problems: int) -> Recipe:
        return on_problems(file, "evaluate.top_p=.5", f"evaluate.problems={problems}")

    run_evaluation(recipe(3), model, out)
    few = {name: (out / f"trajectories-{name}.jsonl").read_text() for name in ("t1", "top_p")}
    told: list[int] = []

    def tell(done: int, total: int) -> None:
        told.append(done)
        if len(told) == 13:  # the second setting has begun
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run_evaluation(recipe(7), model, out, on_progress=tell)
    run_evaluation(recipe(7), model, out, on_progress=lambda done, _: told.append(done))
    assert sorted(set(told)) == [*range(7, 15), *range(21, 29)], "the rollouts of four problems in each setting"
    for name, rollouts in few.items():
        assert set(rollouts.splitlines()) < set((out / f"trajectories-{name}.jsonl").read_text().splitlines())
    grown, whole = read_result(out / "result.json"), read_result(run_evaluation(recipe(7), model, tmp_path / "whole"))
    assert (grown.recipe, grown.inputs, grown.pass1) == (whole.recipe, whole.inputs, whole.pass1)
    assert {k: s.problems for k, s in grown.settings.items()} == {k: s.problems for k, s in whole.settings.items()}
    with pytest.raises(CheckpointError, match=r"holds an evaluation with evaluate\.problems = 7, now 3: choose"):
        run_evaluation(recipe(3), model, out)


@pytest.mark.torch
def test_what_was_begun_and_cannot_be_read_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "trajectories-t1.jsonl.partial").write_text("mine\n")
    task = Task("t/0", "1 + 1?", "2")
    with pytest.raises(CheckpointError, match=r"trajectories-t1\.jsonl\.partial is broken \(.*\): remove it"):
        result_in(RECIPE, tmp_path, tmp_path, [task])


def test_an_evaluation_with_repairs_is_another_one(done: Path) -> None:
    recipe = RECIPE.model_copy(update={"evaluate": RECIPE.evaluate.model_copy(update={"repair": "saar"})})
    with pytest.raises(CheckpointError, match=r"repair\.kind = None.*evaluate\.repair = 'none', now 'saar'"):
        run_evaluation(recipe, done.parent / "model", done)


@pytest.mark.parametrize(("kind", "at_once", "side_by_side"), [("vllm", 1, 1), ("vllm", 3, 3), ("openai", 6, 3)])
def test_of_many_problems_some_are_done_before_others_begin(
    kind: str, at_once: int, side_by_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits has its prompts in memory, and is lost where an evaluation is killed. at_once: of each server."""
    monkeypatch.setattr(runner, "AT_ONCE", 4)
    servers = [f"engine.kind={kind}", f"engine.url={SERVERS[kind]}", f"engine.at_once={at_once}"]
    recipe = RECIPE.model_copy(update={"engine": load_recipe(None, servers).engine})
    tasks, tokenizer, begun = task_set("numbers").evaluation(3, 0), ByteTokenizer(), PartialResults()
    seen: list[tuple[str, int]] = []

    def reply(request_id: str, text: str, n: int) -> str:
        seen.append((request_id.rsplit("/", 2)[0], len(begun.groups)))
        return "I do not know"

    work = evaluate(
        recipe, tasks, name="t1", params=settings_of(recipe)["t1"], engine=ScriptedEngine(tokenizer, reply),
        chat=Chat(tokenizer), on_progress=lambda _: None, begun=begun,
    )  # fmt: skip
    assert [group[0].task for group in asyncio.run(work)[0]] == [task.id for task in tasks]
    assert seen == [(task.id, number // side_by_side) for number, task in enumerate(tasks) for _ in range(4)]


@dataclass(frozen=True)
class Judged:
    """Ten problems, each rollout of which is right; a file says of how many the judge is away as it grades the first
    one."""

    away: Path
    name: str = "judged"
    system: str | None = None

    def train(self, seed: int) -> Iterator[Task]:
        return iter(())

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [Task(f"judged/{n}", "go", "1") for n in range(10)]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        _, n, _, index = trajectory.id.split("/")
        if index == "0" and int(n) < int(self.away.read_text()):
            raise InfrastructureFault("the judge is away")
        return replace(trajectory, reward=1.0)


class JudgedSection(TaskSection):
    away: str = ""

    def build(self, count_tokens: object = None) -> Judged:
        return Judged(Path(self.away))


@pytest.mark.torch
def test_one_rollout_in_twenty_may_be_lost_and_of_more_the_problems_get_another_chance(tmp_path: Path) -> None:
    from training import build_tokenizer

    model, away = tmp_path / "model", tmp_path / "away"
    model.mkdir()
    build_tokenizer().save_pretrained(model)
    recipe = load_recipe(
        None,
        [f"task.kind={__name__}:JudgedSection", f"task.away={away}", "engine.kind=scripted", "engine.replies=['1']",
         "rollout.max_tokens=200", "rollout.lookahead_tokens=0", "sandbox.output_chars=100", "sandbox.workers=1",
         "evaluate.problems=10", "evaluate.samples=2", "evaluate.top_p=1.0"],
    )  # fmt: skip

    def result(out: str) -> tuple[Result, list[int]]:
        told: list[int] = []
        path = run_evaluation(recipe, model, tmp_path / out, on_progress=lambda done, _: told.append(done))
        return read_result(path), told

    away.write_text("1")
    found, _ = result("few")
    setting = found.settings["t1"]
    assert (setting.lost, [p.samples for p in setting.problems]) == (1, [1] + [2] * 9)
    assert found.pass1 == {"t1": 1.0}, "a rollout that nobody could grade is none that failed"
    away.write_text("2")
    with pytest.raises(SandboxUnavailable, match=r"^2 of 20 rollouts were lost .*the judge is away, too many for an"):
        result("many")
    assert [path.name for path in (tmp_path / "many").iterdir()] == ["trajectories-t1.jsonl.partial"]
    away.write_text("0")
    found, told = result("many")
    assert found.settings["t1"].lost == 0
    assert told == [17, 18, 19, 20, 20], "of the two problems alone"
