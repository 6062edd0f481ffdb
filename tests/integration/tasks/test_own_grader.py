"""A user's own grading function: what it is given, and that one which hangs or eats memory harms nobody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from comparing import answer, trajectory
from retcon import grade
from retcon.build import open_graded
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import Trajectory
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Fault, Outcome, Verdict
from retcon.tasks.registry import try_grade
from retcon.tasks.types import Task

MODULE = """
import asyncio, os, time

def same(answer, reply):
    print("said aloud")
    return answer == reply.strip()

async def near(*, reply, answer, question=None, meta=None):
    await asyncio.sleep(0)
    return 0.5 if answer in reply else 0

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0 if solution_str == ground_truth else -1.0, "acc": solution_str == ground_truth, "pred": "7"}

def of_source(data_source): return data_source == "openai/gsm8k"
def points(reply): return 10 if reply == "7" else 0
def says_points(reply):
    from retcon.tasks.grading.registry import Verdict
    return Verdict(10, True)

def all_of_it(**given):
    return given["trajectory"].turns[-1].text == given["reply"] and given["meta"]["level"] == 3

def odd(reply):
    if "raise" in reply: raise ValueError("no idea")
    if "exit" in reply: raise SystemExit(3)
    if "die" in reply: os._exit(1)
    if "hang" in reply: time.sleep(3600)
    if "eat" in reply: return bool(bytearray(10**12))
    if "deaf" in reply:
        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)
    if "nan" in reply: return float("nan")
    return True

def runs(answer, reply):
    import subprocess, sys
    return subprocess.run([sys.executable, "-c", reply], capture_output=True, text=True).stdout.strip() == answer

def other(reply, mood): return True
def trl(prompts, completions, **kwargs): return [1.0]
NUMBER = 3

from dataclasses import dataclass
from retcon.tasks.grading.registry import Kind, Verdict

@dataclass(frozen=True)
class Settings:
    fold: bool = False

class Contains:
    def __init__(self, settings): self.settings = settings
    async def grade(self, task, reply):
        return Verdict.of(task.answer in (reply.text.lower() if self.settings.fold else reply.text))
    async def check(self, task): pass
    async def close(self): pass

async def opened(settings, host): return Contains(settings)
CONTAINS = Kind("contains", Settings, opened)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return "my_rewards"


def said(path: str, replies: Sequence[str], *, answer_: str = "7", **options: object) -> list[Outcome]:
    async def main() -> list[Outcome]:
        settings = GradeSettings(path, options={"function": options})
        async with Grading(settings) as grading:
            task = Task("t/0", "which?", answer_, meta={"level": 3})
            rollouts = [trajectory("t/0/0", answer(reply), reward=None) for reply in replies]
            return [one for _, one in await asyncio.gather(*(grading.judge(task, t) for t in rollouts))]

    return asyncio.run(main())


def test_it_returns_a_truth_a_number_or_an_object(module: str) -> None:
    assert said(f"{module}:same", ["7", "8"]) == [Verdict(1.0, True), Verdict(0.0, False)]
    assert said(f"{module}:near", ["it is 7"]) == [Verdict(0.5, False)]
    assert said(f"{module}:near", ["it is 7"], right_from=0.5) == [Verdict(0.5, True)]
    assert said(f"{module}:verl", ["7", "8"]) == [Verdict(1.0, True), Verdict(0.0, False)]
    assert said(f"{module}:all_of_it", ["7"]) == [Verdict(1.0, True)]


def test_one_that_fails_is_a_fault_of_its_rollout_alone(module: str) -> None:
    bad = ["raise", "exit", "die", "hang", "eat", "deaf", "nan"]
    mixed = [reply for one in bad for reply in (one, "fine")]
    found = said(f"{module}:odd", mixed, seconds=1.0, memory_mb=256)
    assert all(isinstance(one, Fault) for one in found[::2]), found
    assert found[1::2] == [Verdict(1.0, True)] * len(bad)
    why = [one.why for one in found[::2]]
    told = ["ValueError: no idea", "SystemExit: 3", "died", "within 1 s", "MemoryError", "within 1 s", "within [0, 1]"]
    assert [text for text, one in zip(told, why, strict=True) if text not in one] == []


def test_what_it_raises_is_told_with_its_line(module: str, tmp_path: Path) -> None:
    (raises,) = said(f"{module}:odd", ["raise"])
    line = 1 + MODULE.splitlines().index('    if "raise" in reply: raise ValueError("no idea")')
    assert isinstance(raises, Fault)
    assert raises.why.endswith(f"it raised ValueError: no idea ({tmp_path / 'my_rewards.py'}:{line})")


def test_grade_without_an_event_loop_calls_a_function_by_its_import_path(module: str) -> None:
    assert grade(answer="7", reply=" 7", kind=f"{module}:same")
    assert not grade(answer="8", reply="7", kind=f"{module}:same")
    with pytest.raises(RecipeError, match=r"cannot be imported: .* \(did you mean 'same'\?\)"):
        grade(answer="7", reply="7", kind=f"{module}:sam")
    with pytest.raises(InfrastructureFault, match="it raised ValueError: no idea"):
        grade(answer="7", reply="raise", kind=f"{module}:odd")


@pytest.mark.parametrize("name", ["points", "says_points"])
def test_one_that_counts_beyond_one_ends_the_work_and_not_only_the_right_rollouts(module: str, name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{module}:{name} gives a score of 10: it must be within \[0, 1\]"):
        said(f"{module}:{name}", ["8", "7"])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("my_rewards:sam", r"cannot be imported: .* \(did you mean 'same'\?\)"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("my_reward:same", r"cannot be imported: .* \(did you mean 'my_rewards'\?\)"),
        ("my_rewards:NUMBER", r"must be a function \(answer, reply\) or an instance of .*registry\.Kind: it is int 3"),
        ("my_rewards:Contains", "must be a function .*: it is the class my_rewards.Contains"),
        ("my_rewards:other", "its parameter 'mood' is not known; there are: answer, reply"),
        ("my_rewards:trl", "its parameter 'prompts' is not known; there are: answer, reply"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(module: str, path: str, told: str) -> None:
    with pytest.raises(RecipeError, match=f"grader '{path}'.*{told}"):
        said(path, ["7"])


def test_why_a_rollout_of_a_file_could_not_be_graded_reaches_whoever_made_it(module: str) -> None:
    Path("problems.jsonl").write_text('{"question": "What is 6 times 7?", "answer": "42"}\n')
    tasks = FileTaskSettings(path="problems.jsonl", evaluation_share=0.0, grader=f"{module}:odd").open()
    told: list[str] = []

    async def main() -> Trajectory:
        async with open_graded(tasks) as grading:
            made = trajectory("t/0", answer("raise"), reward=None)
            return await try_grade(next(tasks.train(0)), made, grading.grade, lambda _, why: told.append(why))

    assert (lost := asyncio.run(main())).reward is None
    assert lost.stop == "infrastructure"
    assert [why.partition(" (")[0] for why in told] == ["my_rewards:odd: it raised ValueError: no idea"]


def test_no_process_is_left(module: str) -> None:
    before = _workers()
    said(f"{module}:odd", ["hang", "fine", "fine"], seconds=0.5, at_once=3)
    assert _workers() <= before


def _workers() -> set[Path]:
    children = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == os.getpid()]
    return {c for c in children if b"tasks.grading.worker" in _read(c / "cmdline")}


def _parent(process: Path) -> int:
    stat = _read(process / "stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended
        return b""
