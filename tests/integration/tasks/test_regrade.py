"""`retcon regrade`: stored rollouts scored again, beside the old ones."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from comparing import QUESTION, answer, trajectory, turn
from datafiles import write
from retcon.cli.app import app
from retcon.cli.eval import _regrade_table
from retcon.core.errors import RecipeError, RecordError, TaskWarning
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.regrade import VERDICTS, RegradeJob, RegradeResult, count_results, read_tasks, regrade
from retcon.tasks.registry import task_set, training_prompts
from retcon.tasks.types import Task

SEED = 3
TRAINED = list(islice(training_prompts(task_set("numbers"), SEED), 4))
EVALUATED = task_set("numbers").evaluation(2, 5)


def rollout(task: Task, index: int, text: str, reward: float | None) -> Trajectory:
    made = trajectory(f"{task.id}/0/{index}", turn("1", "1"), answer(text), reward=reward, question=task.question)
    return replace(made, task=task.id)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of which one rollout was graded wrongly, one was lost at its end and one before."""
    root = tmp_path / "run"
    (root / "trajectories").mkdir(parents=True)
    (root / "eval").mkdir()
    (root / "run.json").write_text(json.dumps({"recipe": {"run": {"seed": SEED}, "task": {"kind": "numbers"}}}))
    about = {"checkpoint": "x", "recipe": {"task": {"kind": "numbers"}, "evaluate": {"problems": 2, "seed": 5}}}
    (root / "eval/result.json").write_text(json.dumps(about))
    lost = replace(rollout(TRAINED[2], 0, rf"\boxed{{{TRAINED[2].answer}}}", None), stop="infrastructure")
    gone = replace(rollout(TRAINED[3], 0, "", None), turns=(turn("1", "1"),), stop="infrastructure")
    steps = [
        [
            rollout(TRAINED[0], 0, rf"\boxed{{{TRAINED[0].answer}}}", 1.0),
            rollout(TRAINED[0], 1, f"#### {TRAINED[0].answer}", -1.0),
            rollout(TRAINED[1], 0, r"\boxed{-1}", -1.0),
        ],
        [lost, gone, replace(rollout(TRAINED[1], 1, "on and on", -1.0), stop="length")],
    ]
    for n, step in enumerate(steps, 1):
        jsonl.write(root / f"trajectories/step-00000{n}.jsonl", step)
    jsonl.write(root / "eval/trajectories-t1.jsonl", [rollout(EVALUATED[1], 0, r"\boxed{-1}", 1.0)])
    return root


def job(run: Path, **changes: object) -> RegradeJob:
    return replace(RegradeJob(run, run / "regraded", GradeSettings("exact")), **changes)  # type: ignore[arg-type]


def ignored(done: int, total: int) -> None:
    """Progress."""


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_each_rollout_gets_its_new_reward_and_the_old_files_stay(run: Path) -> None:
    before = bytes_of(run)
    told: list[tuple[int, int]] = []
    done = regrade(job(run), lambda n, total: told.append((n, total)))
    assert [one.change for one in done] == ["became wrong", "same", "became right", "same", "found", "same", "same"]
    assert told[0] == (0, 7)
    assert told[-1] == (7, 7)
    found = count_results(done)
    assert (found["rollouts"], found["before"], found["now"]) == (7, 2, 3)
    new = [t for name in ("eval/trajectories-t1", "trajectories/step-000001", "trajectories/step-000002")
           for t in jsonl.read(run / f"regraded/{name}.jsonl")]  # fmt: skip
    assert [t.reward for t in new] == [-1, 1, 1, -1, 1, None, -1]
    assert [t.stop for t in new][-3:] == ["answer", "infrastructure", "length"]
    assert new[2].turns == list(jsonl.read(run / "trajectories/step-000001.jsonl"))[1].turns
    assert {name: data for name, data in bytes_of(run).items() if not name.startswith("regraded")} == before


def test_what_is_finished_is_not_written_over_unless_asked(run: Path) -> None:
    regrade(job(run), ignored)
    before = bytes_of(run / "regraded")
    with pytest.raises(RecordError, match=r"regraded is there already, and finished; --force"):
        regrade(job(run), ignored)
    assert bytes_of(run / "regraded") == before
    done = regrade(job(run, by="choice", settings=GradeSettings("choice"), force=True), ignored)
    assert [one.reward for one in done][:2] == [None, None], "no number is a letter"
    assert "is not a letter" in done[0].why


def test_it_goes_on_where_it_was_interrupted(run: Path) -> None:
    class Interrupt(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise Interrupt

    regrade(job(run, out=run / "whole"), ignored)
    with pytest.raises(Interrupt):
        regrade(job(run, at_once=1), stop)
    kept = (run / "regraded" / VERDICTS).read_bytes()
    assert kept.count(b"\n") == 3
    with (run / "regraded" / VERDICTS).open("ab") as file:
        file.write(b'{"file": "tra')  # killed as it wrote
    told = r"otherwise \(settings was {'grader': 'exact', .*}, is {'grader': 'math', .*}\): choose another, or --f"
    with pytest.raises(RecordError, match=told):
        regrade(job(run, settings=GradeSettings("math")), ignored)
    other = GradeSettings("exact", "binary", {"code": {"score": "share"}})
    told = r"'rewards': 'signed', .*is .*'rewards': 'binary', 'options': {'code': {'score': 'share'}}"
    with pytest.raises(RecordError, match=told):
        regrade(job(run, settings=other), ignored)
    regrade(job(run), ignored)
    went_on = bytes_of(run / "regraded")
    assert went_on[VERDICTS].startswith(kept)
    assert sorted(went_on[VERDICTS].splitlines()) == sorted((run / "whole" / VERDICTS).read_bytes().splitlines())
    assert {n: d for n, d in went_on.items() if "trajectories" in n} == {
        n: d for n, d in bytes_of(run / "whole").items() if "trajectories" in n
    }


@pytest.mark.parametrize("written", ["", "[1]", '{"by": nu'])
def test_a_marker_that_was_cut_off_is_named_and_does_not_lock_the_folder(run: Path, written: str) -> None:
    regrade(job(run), ignored)
    whole = bytes_of(run / "regraded")
    (run / "regraded/regrade.json").write_text(written)
    with pytest.raises(RecordError, match=r"regraded/regrade\.json cannot be read: .*; --force begins anew"):
        regrade(job(run), ignored)
    (run / "regraded/.partial-4194304-regrade.json").write_text(written)  # of a kill: no process has that number
    regrade(job(run, force=True), ignored)
    assert {**bytes_of(run / "regraded"), VERDICTS: b""} == {**whole, VERDICTS: b""}


@pytest.mark.parametrize("broken", [b"{}", b'{"file": "tra', b'{"file": "\xff"}'], ids=["schema", "cut", "bytes"])
def test_a_broken_verdict_is_named_and_those_after_it_are_not_lost(run: Path, broken: bytes) -> None:
    regrade(job(run), ignored)
    whole, file, marker = bytes_of(run / "regraded"), run / "regraded" / VERDICTS, run / "regraded/regrade.json"
    marker.write_text(marker.read_text().replace("true", "false"))  # killed before it said so
    first, _, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, broken + b"\n", *rest]))
    with pytest.raises(RecordError, match=r"verdicts\.jsonl, line 2: not a verdict: .*; remove that line"):
        regrade(job(run), ignored)
    assert file.read_bytes() == b"".join([first, broken + b"\n", *rest])
    file.write_bytes(b"".join([first, *rest]))
    told: list[int] = []
    regrade(job(run), lambda done, _: told.append(done))
    assert told == [6, 7], "one was graded again"
    assert {**bytes_of(run / "regraded"), VERDICTS: b""} == {**whole, VERDICTS: b""}


@pytest.mark.parametrize("force", [False, True])
def test_results_of_another_file_are_not_written_over(run: Path, force: bool) -> None:
    first = run / "trajectories/step-000001.jsonl"
    plain, packed = first.with_name("x.jsonl"), first.with_name("x.jsonl.gz")
    for path in (plain, packed):
        jsonl.write(path, jsonl.read(first))
    words = ["--grader", "exact", *(["--force"] if force else [])]
    assert CliRunner().invoke(app, ["regrade", str(plain), *words]).exit_code == 0
    before = bytes_of(first.with_name("x.regraded"))
    refused = CliRunner().invoke(app, ["regrade", str(packed), *words])
    assert isinstance(refused.exception, RecordError)
    assert str(refused.exception).endswith("x.regraded holds what came of x.jsonl: choose another")
    assert bytes_of(first.with_name("x.regraded")) == before


def test_a_folder_of_something_else_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("dear diary")
    for force in (False, True):
        with pytest.raises(RecordError, match="mine is there, and not of this command"):
            regrade(job(run, out=tmp_path / "mine", force=force), ignored)
    assert [(p.name, p.read_text()) for p in (tmp_path / "mine").iterdir()] == [("notes.txt", "dear diary")]


def test_what_is_unknown_is_refused_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no grader 'exat' .did you mean 'exact'"):
        regrade(job(run, settings=GradeSettings("exat")), ignored)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="holds no trajectories"):
        regrade(job(tmp_path / "empty"), ignored)
    with pytest.raises(RecordError, match=r"rum does not exist .did you mean 'run'"):
        regrade(job(run.with_name("rum"), out=run / "regraded"), ignored)
    about = json.loads((run / "run.json").read_text())
    about["recipe"]["task"] = {"kind": "openenv", "url": "http://127.0.0.1:9", "seeds": 1}
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(RecordError, match=r"gives 0 of the 4 tasks.*no OpenEnv server answers at http://127.*--tasks"):
        regrade(job(run), ignored)
    (run / "run.json").unlink()
    with pytest.raises(RecordError, match=r"gives 0 of the 4 tasks, but not 'numbers/\w+': name a file .* --tasks"):
        regrade(job(run), ignored)
    assert not (run / "regraded").exists()


@pytest.mark.filterwarnings("ignore:.* over max_prompt_tokens")
@pytest.mark.parametrize("what", ["run", "evaluation"])
def test_tasks_of_a_file_are_found_whatever_its_limit_of_tokens_and_missed_where_it_is_gone(
    what: str, tmp_path: Path
) -> None:
    rows = [{"question": f"{'word ' * n}What is {n} plus 1?", "answer": str(n + 1)} for n in range(1, 9)]
    path = write(tmp_path / "rows.jsonl", rows)
    section = {"kind": "file", "path": path, "max_prompt_tokens": 8}
    share = 0.0 if what == "run" else 1.0
    short = FileTaskSettings(path=path, max_prompt_tokens=8, evaluation_share=share)
    kept = short.open(lambda task: len(task.question.split()))
    drawn = kept.evaluation(2, 5) if what != "run" else list(islice(training_prompts(kept, SEED), 2))
    recipe = {"run": {"seed": SEED}, "task": section | {"evaluation_share": share}}
    about = {"checkpoint": "x", "recipe": recipe | {"evaluate": {"problems": 2, "seed": 5}}}
    name = "run.json" if what == "run" else "result.json"
    (tmp_path / name).write_text(json.dumps({"recipe": recipe} if what == "run" else about))
    jsonl.write(tmp_path / "trajectories-t1.jsonl", [rollout(t, 0, rf"\boxed{{{t.answer}}}", -1.0) for t in drawn])
    done = regrade(RegradeJob(tmp_path, tmp_path / "out", GradeSettings("exact"), by="exact"), ignored)
    assert [one.reward for one in done] == [1.0, 1.0]
    Path(path).unlink()
    with pytest.raises(RecordError, match=r"gives 0 of the 2 tasks.*rows\.jsonl does not exist.*: name .* --tasks"):
        regrade(RegradeJob(tmp_path, tmp_path / "again", GradeSettings("exact")), ignored)


def test_tasks_of_a_file_name_their_graders(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "alone.jsonl"
    shutil.copy(run / "trajectories/step-000001.jsonl", file)
    rows = [{"id": t.id, "answer": t.answer, "grader": "code", "tests": "assert 1"} for t in TRAINED]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = regrade(RegradeJob(file, tmp_path / "out", GradeSettings("exact"), tasks=tmp_path / "tasks.jsonl"), ignored)
    assert [(one.reward, one.why) for one in done] == [(1.0, "passed")] * 3, "the program that ran without a failure"
    (tmp_path / "tasks.jsonl").write_text('{"id": null}\n')
    with pytest.raises(RecordError, match=r"tasks\.jsonl, line 1: a task is an object with 'id', or 'question', and"):
        regrade(RegradeJob(file, tmp_path / "out2", GradeSettings("exact"), tasks=tmp_path / "tasks.jsonl"), ignored)


def test_tasks_of_a_file_are_named_as_it_names_them_or_by_their_questions(tmp_path: Path) -> None:
    rows = [{"id": 17, "question": "What is 1 plus 1?", "answer": "2"}, {"question": "And 2 plus 2?", "answer": "4"}]
    path = write(tmp_path / "mine.jsonl", rows)
    tasks = list(FileTaskSettings(path=path, evaluation_share=0.0).open().train(1))
    assert sorted(task.id for task in tasks)[0] == "mine/17"
    kept = [rollout(task, 0, rf"\boxed{{{task.answer}}}", -1.0) for task in tasks]
    jsonl.write(tmp_path / "kept.jsonl", kept)
    one = RegradeJob(tmp_path / "kept.jsonl", tmp_path / "out", GradeSettings("exact"), tasks=Path(path))
    assert [done.reward for done in regrade(one, ignored)] == [1.0, 1.0]
    other = replace(kept[0], task="other/17")
    jsonl.write(tmp_path / "kept.jsonl", [*kept, other])  # of two sources: whose 17 it is, the file does not say
    told = r"mine\.jsonl holds 1 of the 3 tasks, but not 'mine/17' \(its ids are such as '17', '\w{12}'\): name .*"
    with pytest.raises(RecordError, match=told):
        regrade(replace(one, out=tmp_path / "again"), ignored)


def test_the_command_prints_what_changed(run: Path) -> None:
    done = CliRunner().invoke(app, ["regrade", str(run), "--grader", "exact", "--rewards", "binary", "--jobs", "3"])
    assert done.exit_code == 0, done.output
    assert ["all", "7", "2", "3", "1", "1", "0", "1"] in [line.split() for line in done.output.splitlines()], (
        done.output
    )
    assert [t.reward for t in jsonl.read(run / "regraded/trajectories/step-000001.jsonl")] == [1, 1, 0]
    lines = (run / "regraded" / VERDICTS).read_text().splitlines()
    assert {json.loads(line)["why"] for line in lines} >= {"the same text", "another text"}


BLOCKING = """
import os

def grade(reply, task):
    if os.path.exists("begun"):
        open("hanging", "w").close()  # a pipe: someone waits for this
        open("never").close()
    open("begun", "w").close()
    return True
"""


def test_ctrl_c_keeps_what_was_graded(run: Path, tmp_path: Path) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING)
    os.mkfifo(tmp_path / "hanging")
    os.mkfifo(tmp_path / "never")
    words = [sys.executable, "-m", "retcon", "regrade", str(run), "--grader", "blocking:grade", "--jobs", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        pipe = os.open(tmp_path / "hanging", os.O_RDONLY | os.O_NONBLOCK)
        opened = select.poll()
        opened.register(pipe)
        while not opened.poll(100) and process.poll() is None:
            pass  # until the grader hangs; a command that ended has said why
        os.close(pipe)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert f"what was graded is kept in {run / 'regraded'}; the same command continues" in said
    assert (run / "regraded" / VERDICTS).read_bytes().count(b"\n") == 1
    (tmp_path / "blocking.py").write_text("def grade(reply): return True")
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ["all", "7", "2", "5", "2", "0", "0", "1"] in [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("word", ["score=share", "code.score", "code"])
def test_a_setting_that_is_none_is_refused(run: Path, word: str) -> None:
    done = CliRunner().invoke(app, ["regrade", str(run), "--set", word])
    assert isinstance(done.exception, RecipeError)
    assert "write it as grader.key=value" in str(done.exception)


def test_the_names_of_an_evaluations_files_are_whole_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"trajectories-{setting}.jsonl" for setting in ("t1", "top_p")]
    Console(width=80).print(
        _regrade_table([RegradeResult(file, 0, "t", 1.0, 1.0, None, "", None, "answer") for file in files])
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if ".jsonl" in line] == files


# `retcon regrade --tasks`: the tasks of a file that someone names, which may be the data that a run trained on.


def trained_on(path: str) -> list[Task]:
    return list(FileTaskSettings(path=path, evaluation_share=0).open().train(0))


def regraded(
    folder: Path, tasks: list[Task], file: str | None, reply: str, grader: str = "exact"
) -> list[RegradeResult]:
    """Of a rollout of each task with this reply, with the tasks of the file, or as the run in the folder drew them."""
    kept = [
        replace(trajectory(f"{t.id}/0/0", answer(reply), reward=1.0, question=t.question), task=t.id) for t in tasks
    ]
    jsonl.write(folder / "kept.jsonl", kept)
    job = RegradeJob(folder / "kept.jsonl", folder / "out", GradeSettings(grader), tasks=file and Path(file))
    return regrade(job, lambda *_: None)


def test_lines_that_are_no_rows_to_train_on_are_read_under_any_name(tmp_path: Path) -> None:
    rows = [
        {"id": 17, "answer": 4}, {"id": "mine/18", "answer": "5", "tests": "assert 1"}, {"question": "Why?"},
        {"id": "19", "question": "Add.", "answer": "6", "tests": "assert 1"},
    ]  # fmt: skip
    (tmp_path / "tasks").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    found = [task for _, task in read_tasks(tmp_path / "tasks")]
    assert [(task.id, task.answer) for task in found[:2]] == [("17", "4"), ("mine/18", "5")]
    assert found[1].meta == {"tests": "assert 1"}
    assert (found[2].question, found[2].answer) == ("Why?", "")
    assert (found[3].answer, found[3].meta["tests"]) == ("6", "assert 1"), "for graders of answers, and of programs"


@pytest.mark.parametrize("grader", ["math", "exact", "choice", "code"])
def test_rows_whose_answer_is_elsewhere_make_no_rollout_wrong(grader: str, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"id": "a", "text": "Say yes.", "meta": {"label": "yes"}}])
    trained = Task("mine/a", "Say yes.", "yes")
    with pytest.raises(
        RecordError, match=r"mine\.jsonl: there is nothing to grade task 'mine/a' by \(.*: a row holds its"
    ):
        regraded(tmp_path, [trained], path, r"\boxed{yes}", grader)
    assert not (tmp_path / "out").exists()
    assert [one.reward for one in regraded(tmp_path, [trained], path, "yes", "test_regrade:says_yes")] == [1.0]


@pytest.mark.parametrize("given", [True, False])
def test_problems_that_the_rollouts_were_not_asked_are_reported(given: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"id": n, "question": f"What is {n} + 1?", "answer": n + 1} for n in (1, 2)])
    tasks = trained_on(path)
    rows = [
        {"id": 1, "question": "What is 1 times 7?", "answer": 7},
        {"id": 2, "question": "What  is 2 + 1", "answer": 3},
    ]
    write(tmp_path / "mine.jsonl", rows)
    if not given:
        about = {"run": {"seed": 0}, "task": {"kind": "file", "path": path, "evaluation_share": 0}}
        (tmp_path / "run.json").write_text(json.dumps({"recipe": about}))
    with pytest.warns(TaskWarning) as told:
        done = regraded(tmp_path, tasks, path if given else None, r"\boxed{7}")
    assert [one.reward for one in sorted(done, key=lambda one: one.id)] == [1.0, -1.0], "a row may have been corrected"
    assert [str(one.message) for one in told] == [
        f"{path if given else 'the data of the run'}: 1 of 2 tasks are not what their rollouts were asked: mine/1/0/0 "
        "was not asked 'What is 1 times 7?'; if these are other problems under the same ids, name the data of the run "
        "with --tasks"
    ]


RETURNED = [
    (replace(turn("final_answer('42')", ""), observations=()), "42", 1.0),  # text, and the model's own is a call
    (answer("It is 42."), "It is 41.", -1.0),
    (answer("no number at all"), 0.5, 0.5),
    (answer(r"\boxed{42}"), 0.0, 0.0),
    (answer(r"\boxed{42}"), None, 1.0),
]


def harnessed(folder: Path, *, by: str | None = None, lost: bool = False) -> list[float | None]:
    """The rewards of rollouts that harnesses returned something of. lost: in grading, those that have a text."""
    kept = [
        replace(
            trajectory(f"mine/{n}/0/0", last, reward=before, question=QUESTION), task=f"mine/{n}", returned=said,
            **({"reward": None, "stop": "infrastructure"} if lost and isinstance(said, str) else {}),
        ) for n, (last, said, before) in enumerate(RETURNED)
    ]  # fmt: skip
    jsonl.write(folder / "kept.jsonl", kept)
    path = write(folder / "mine.jsonl", [{"id": n, "question": QUESTION, "answer": "42"} for n in range(len(kept))])
    job = RegradeJob(folder / "kept.jsonl", folder / "out", GradeSettings(by or "math"), by=by, tasks=Path(path))
    done = regrade(job, lambda *_: None)
    new = list(jsonl.read(folder / "out/kept.jsonl"))
    assert [(t.turns, t.returned) for t in new] == [(t.turns, t.returned) for t in kept]
    assert [t.reward for t in new] == [one.reward for one in done]
    assert {t.stop for t in new} == {"answer"}
    return [one.reward for one in done]


def test_what_a_harness_returned_is_graded_again_and_its_own_reward_stays(tmp_path: Path) -> None:
    assert harnessed(tmp_path) == [1.0, -1.0, 0.5, 0.0, 1.0]


def test_what_a_harness_returned_is_graded_where_no_grader_could_tell(tmp_path: Path) -> None:
    assert harnessed(tmp_path, lost=True) == [1.0, -1.0, 0.5, 0.0, 1.0]


def test_a_grader_that_is_named_takes_the_place_of_a_harness_s_own_reward(tmp_path: Path) -> None:
    assert harnessed(tmp_path, by="math") == [1.0, -1.0, -1.0, 1.0, 1.0]


def says_yes(reply: str) -> bool:
    """A grader that needs no answer."""
    return reply == "yes"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(RecordError, match="cannot be read"):
            list(read_tasks(path))
