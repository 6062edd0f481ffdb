"""Evaluations as logs of Inspect, written with its API and read by its reader. Needs the extra [inspect]."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from retcon.core.types import Observation, Provenance, RepairRecord, Segment, ToolCall, Trajectory, Turn
from retcon.evaluate.result import Result, score, write_result
from retcon.store import jsonl
from retcon.tasks.types import Task

pytestmark = [
    pytest.mark.skipif(find_spec("inspect_ai") is None, reason="inspect_ai is not installed"),
    pytest.mark.filterwarnings("default"),
]


def call(number: int, code: str, status: str = "ok", *, repair: RepairRecord | None = None, **more: Turn) -> Turn:
    text = f"Let me see.\\n```python\\n{code}\\n```"
    return Turn(
        (Segment("sampled", text, (1, 2, 3)), Segment("observation", "out", (4,))),
        (ToolCall(f"c{number}", "python", {"code": code}, 12),),
        (Observation(f"c{number}", "out", status, "NameError" if status == "error" else None, 0.25),),  # type: ignore[arg-type]
        "call",
        tuple(more.values()),
        repair,
    )


def folder_of(path: Path) -> tuple[Path, list[Task]]:
    """An evaluation of two problems, two rollouts each; one has a repaired call, one ended for want of tokens."""
    failed, fix = call(0, "print(x)", "error"), call(1, "print(1)")
    repaired = call(1, "print(1)", repair=RepairRecord("shallow", 1, 0.8), failed=failed, fix=fix)
    last, cut = Turn((Segment("sampled", "ANSWER: 2", (5,)),)), Turn((Segment("sampled", "So", (5,)),), stop="length")

    def made(task: str, index: int, turns: tuple[Turn, ...], reward: float) -> Trajectory:
        stop = "length" if turns[-1].stop == "length" else "answer"
        prompt = (Segment("prompt", "<user>1 + 1?", (9, 9)),)
        return Trajectory(f"{task}-{index}", task, prompt, turns, reward, stop, Provenance(index=index), answer="2")

    groups = {
        "sums/0": [made("sums/0", 0, (repaired, last), 1.0), made("sums/0", 1, (call(0, "1/0", "error"), last), 1.0)],
        "sums/1": [made("sums/1", 0, (last,), -1.0), made("sums/1", 1, (cut,), -1.0)],
    }
    path.mkdir()
    jsonl.write(path / "trajectories-rollout.jsonl", [one for group in groups.values() for one in group])
    setting = score(groups.items(), temperature=1.0, top_p=0.6, cpu_s=1, wall_s=1)
    recipe: dict[str, dict[str, object]] = {"rollout": {"tools": ["python"]}, "evaluate": {"samples": 2}}
    about = {"benchmark": {"name": "sums", "hub": "me/sums"}, "versions": {"retcon-rl": "0.1"}}
    write_result(path / "result.json", Result("base", recipe, {}, about=about).with_setting("rollout", setting))
    tasks = [Task(name, f"{name}: 1 + 1?", "2", meta={"grader": "math"}) for name in groups]
    return path, tasks


def test_a_log_is_read_back_with_calls_failures_and_repairs(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    from retcon.report.inspect_log import write_inspect_logs

    (path,) = write_inspect_logs(*folder_of(tmp_path / "sums"))
    log = read_eval_log(str(path))
    assert (log.status, log.eval.task, log.eval.model) == ("success", "sums", "base")
    assert log.eval.metadata is not None
    assert log.eval.metadata["tools"] == ["python"]
    assert log.results is not None
    (found,) = log.results.scores
    assert (found.name, found.metrics["accuracy"].value, found.metrics["stderr"].value) == ("math", 0.5, 0.5)
    samples = sorted(log.samples or [], key=lambda sample: (sample.id, sample.epoch))
    assert [(s.id, s.epoch) for s in samples] == [("sums/0", 1), ("sums/0", 2), ("sums/1", 1), ("sums/1", 2)]
    first, second, third, fourth = samples
    assert [m.role for m in first.messages] == ["user", "assistant", "tool", "assistant"]
    assert first.messages[1].tool_calls[0].arguments == {"code": "print(1)"}  # type: ignore[union-attr]
    assert first.messages[2].error is None  # type: ignore[union-attr]
    tools = [e for e in first.events if e.event == "tool"]
    assert [(e.arguments["code"], e.failed) for e in tools] == [("print(x)", True), ("print(1)", False)]
    (repair,) = [e for e in first.events if e.event == "info"]
    assert repair.data["decision"] == "shallow"
    assert second.messages[2].error.message == "NameError"  # type: ignore[union-attr]
    assert (second.metadata["calls"], second.metadata["failed_calls"]) == (1, 1)
    assert third.scores is not None
    assert (third.scores["math"].value, third.scores["math"].answer, third.target) == ("I", "2", "2")
    assert fourth.limit is not None
    assert fourth.limit.type == "token"
    assert log.stats.model_usage["base"].output_tokens == sum(
        s.model_usage["base"].output_tokens for s in log.samples or []
    )


def test_its_analysis_reads_the_log(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from inspect_ai.analysis import evals_df, messages_df, samples_df

    from retcon.report.inspect_log import write_inspect_logs

    (path,) = write_inspect_logs(*folder_of(tmp_path / "sums"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evals, samples, messages = evals_df(str(path)), samples_df(str(path)), messages_df(str(path))
    # twelve messages of the four conversations, and the two of the attempt that a repair took out
    assert (len(evals), len(samples), len(messages)) == (1, 4, 14)
    assert sorted(samples["score_math"]) == ["C", "C", "I", "I"]
    assert evals["score_headline_value"][0] == 0.5
