"""`retcon audit` from end to end, on a tiny model that calls in vain and calls again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("torch", reason="rolling a model out needs the [train] extra")

import torch
from transformers import AutoModelForCausalLM

from retcon.cli.eval import audit
from retcon.config.schema import TaskSection
from retcon.core.errors import CheckpointError, EngineError, RecipeError
from retcon.core.types import Segment, ids_of
from retcon.evaluate.audit import ReplayCounts, read_audit
from retcon.store import jsonl
from retcon.tasks.kinds.numbers import NumberTasks
from retcon.tasks.registry import CountTokens
from retcon.train.sft import run_sft
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
SMALL = [
    "mini/cleaner", "rl.group=8", "sandbox.workers=1", "compute.device=cpu", "rollout.max_turns=3",
    "rollout.max_tokens=96", "rollout.lookahead_tokens=64", "sandbox.output_chars=24", "task.evaluation_share=1",
]  # fmt: skip


def test_an_audit_leaves_a_table_and_the_replays_and_is_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    start = run_sft(small_recipe(base), make_demonstrations(base, tmp_path / "demos.jsonl"), tmp_path / "cold")
    out, tasks = tmp_path / "audit", tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "0", "question": "go", "answer": "1"}) + "\n")
    words = [SMALL[0], "task.kind=file", f"task.path={tasks}", *SMALL[1:]]
    audit(str(start), words, prompts=1, calls=3, replays=2, out=out)
    said = capsys.readouterr().out
    assert "Did the credit point the right way?" in said
    assert str(out / "replays" / "0000.jsonl") in said
    found = read_audit(out / "result.json")
    assert (len(found.calls), found.lost) == (3, 0)
    assert "| masked | " in (out / "table.md").read_text()
    assert all(list(one.pushes) == ["RTMC", "SDPO"] for one in found.calls)
    assert found.calls[0].pushes["SDPO"] == pytest.approx(gap(start, out / "raw.jsonl", found.calls[0]), abs=1e-4)
    for n, one in enumerate(found.calls):
        replays = list(jsonl.read(out / "replays" / f"{n:04}.jsonl"))
        assert len(replays) == 2 * (2 if one.fixed is None else 3)
        assert all(t.id.startswith(one.id) for t in replays)
    stamps = {file: file.stat().st_mtime_ns for file in out.rglob("*.jsonl")}
    audit(str(start), words, prompts=1, calls=3, replays=2, out=out)
    assert read_audit(out / "result.json") == found
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.jsonl")} == stamps
    with pytest.raises(CheckpointError, match="holds another audit"):
        audit(str(start), words, prompts=1, calls=3, replays=3, out=out)
    tasks.write_text(json.dumps({"id": "0", "question": "go", "answer": "2"}) + "\n")
    with pytest.raises(CheckpointError, match=r"audit\.problems was"):  # the same file, another answer in it
        audit(str(start), words, prompts=1, calls=3, replays=2, out=out)
    with pytest.raises(RecipeError, match=r"no problem to evaluate on: task\.evaluation_share"):
        audit(str(start), [*words, "task.evaluation_share=0"], prompts=1, calls=3, replays=2, out=tmp_path / "none")
    with pytest.raises(RecipeError, match=r"raise rollout\.max_tokens"):  # and the same folder serves then
        audit(str(start), [*words, "rollout.max_tokens=2"], prompts=1, calls=3, replays=2, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def gap(model: Path, raw: Path, call: ReplayCounts) -> float:
    """How much likelier, in mean nats, the failed turn's tokens are after its tool's answer than before it."""
    policy = AutoModelForCausalLM.from_pretrained(model)
    rollout = next(one for one in jsonl.read(raw) if one.id == call.id)
    before = [*rollout.prompt, *(s for turn in rollout.turns[: call.turn] for s in turn.segments)]
    turn = rollout.turns[call.turn]

    def score(*context: Segment) -> torch.Tensor:
        start, written = ids_of(context), ids_of(s for s in turn.segments if s.kind == "sampled")
        with torch.no_grad():
            logits = policy(torch.tensor([[*start, *written]])).logits[0, len(start) - 1 : -1]
        return logits.log_softmax(-1)[torch.arange(len(written)), torch.tensor(written)]

    answered = [s for s in turn.segments if s.kind != "sampled"]
    return float((score(*before, *answered) - score(*before)).clamp(-1, 1).mean())


def test_settings_that_cannot_work_leave_the_folder_to_those_that_do(tmp_path: Path) -> None:
    base, out, tasks = make_base(tmp_path / "base", positions=1024), tmp_path / "audit", tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "0", "question": "go", "answer": "1"}) + "\n")
    words = [SMALL[0], "task.kind=file", f"task.path={tasks}", *SMALL[1:]]
    with pytest.raises(RecipeError, match=r"needs engine\.url or engine\.python, and neither is given"):
        audit(str(base), [*words, "engine.kind=vllm"], prompts=1, calls=1, replays=1, out=out)
    assert list(out.iterdir()) == []
    served = ["engine.kind=openai", "engine.url=http://127.0.0.1:9/v1", "engine.model=x", "engine.attempts=1"]
    with pytest.raises(EngineError, match="does not answer"):
        audit(str(base), [*words, *served, "rollout.max_tokens=900"], prompts=1, calls=1, replays=1, out=out)
    scripted = ["engine.kind=scripted", "engine.replies=['1']"]  # another engine, in the same folder
    with pytest.raises(
        RecipeError, match=r"none has a failed call .* with another --out, roll out more problems \(--p"
    ):
        audit(str(base), [*words, *scripted], prompts=1, calls=1, replays=1, out=out)
    assert (out / "audit.json").exists()
    tasks.write_text("".join(json.dumps({"id": n, "question": f"go {n}", "answer": "1"}) + "\n" for n in "01"))
    with pytest.raises(RecipeError, match=r"^of 16 rollouts, none has a failed call"):
        audit(str(base), [*words, *scripted], prompts=2, calls=1, replays=1, out=tmp_path / "more")


class Own(TaskSection):
    """A set of the user's own."""

    system: ClassVar[str] = "Compute."

    def build(self, count_tokens: CountTokens | None = None) -> NumberTasks:
        return NumberTasks(system=self.system)


def test_another_system_prompt_of_a_custom_class_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, out = make_base(tmp_path / "base", positions=1024), tmp_path / "audit"
    own = [*SMALL[:-1], f"task.kind={__name__}:Own", "engine.kind=scripted", "engine.replies=['1']"]
    for _ in range(2):
        with pytest.raises(RecipeError, match="none has a failed call"):
            audit(str(base), own, prompts=1, calls=1, replays=1, out=out)
    monkeypatch.setattr(Own, "system", "Guess.")
    with pytest.raises(CheckpointError, match=r"another audit: audit\.system prompts was .*: choose another"):
        audit(str(base), own, prompts=1, calls=1, replays=1, out=out)
