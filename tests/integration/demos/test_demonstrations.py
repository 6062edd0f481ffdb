"""Demonstrations of every kind: made, kept, gone on with; what is wrong is said before work starts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from retcon.build import build_chat, build_tasks
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, EngineError, RecipeError
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.train.demos.making import Summary, write_demonstrations
from teaching import Messages, annotated, annotated_recipe, teacher_at

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHAT = Chat(ByteTokenizer())


def made(recipe: Recipe, file: Path) -> tuple[Summary, list[Trajectory]]:
    return write_demonstrations(recipe, CHAT, file), list(jsonl.read(file))


def statuses(trajectory: Trajectory) -> list[str]:
    return [o.status for turn in trajectory.turns for o in turn.observations]


@pytest.mark.torch
def test_the_quickstarts_demonstrations_are_what_they_always_were(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the model's folder is found by the [train] extra")
    from retcon.models.locating import model_folder

    recipe = load_recipe("quickstart/cold_start", ["sft.demonstrations=96"])
    folder = model_folder(recipe.model.path)
    write_demonstrations(recipe, build_chat(recipe, folder, build_tasks(recipe)), tmp_path / "d.jsonl")
    told = [
        [t.id, t.task, t.reward, t.answer, t.stop, [[s.kind, s.text, s.ids] for s in t.segments],
         [[c.id, c.code] for u in t.turns for c in u.calls],
         [[o.status, o.error_type, o.text] for u in t.turns for o in u.observations]]
        for t in jsonl.read(tmp_path / "d.jsonl")
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    assert digest == "231a8bc8716836212503ab203f62b462ca8474668e44a237890fbdcc23a63529"


def test_annotated_solutions_run_and_fail_in_the_wanted_shares(tmp_path: Path) -> None:
    bad = [{"question": "What is 5 times 6?", "answer": "It is 5*6 = <<5*6=30>>30.\n#### 31"},
           {"question": "What is 7 times 7?", "answer": "It is 49.\n#### 49"}]  # fmt: skip
    recipe = annotated_recipe(
        tmp_path, [*annotated(24), *bad], "demos.failed_share=0.34", "demos.failed_twice_share=0.5"
    )
    summary, found = made(recipe, tmp_path / "d.jsonl")
    assert (summary.kept, summary.failed) == (24, 8)
    assert summary.rejected == {"the program prints another number than the answer": 1, "no annotated step": 1}
    assert [statuses(t) for t in found].count(["ok"]) == 16
    assert [statuses(t) for t in found].count(["error", "ok"]) == 4
    assert [statuses(t) for t in found].count(["error", "error", "ok"]) == 4
    assert {t.reward for t in found} == {1.0}
    for t in found:
        assert t.turns[-1].text == f"The answer is \\boxed{{{t.answer}}}.<|im_end|>"
    assert len({o.error_type for t in found for u in t.turns for o in u.observations}) > 2


def test_the_same_seed_gives_the_same_bytes_also_after_a_kill(tmp_path: Path) -> None:
    recipe = annotated_recipe(tmp_path, annotated(140), "demos.failed_share=0.2")
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    made(recipe, whole)

    def stop(done: int, wanted: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_demonstrations(recipe, CHAT, cut, on_progress=stop)
    assert not cut.exists()
    partial = tmp_path / "cut.jsonl.partial"
    kept = len(partial.read_bytes().splitlines())
    assert kept == 2
    with partial.open("ab") as file:  # as a kill in the middle of a line leaves it
        file.write(b'{"stop": 139, "kept": [{"id"')
    told: list[int] = []
    write_demonstrations(recipe, CHAT, cut, on_progress=lambda done, wanted: told.append(done))
    assert len(told) == 1  # the stretch that was there is not made again
    assert cut.read_bytes() == whole.read_bytes()
    assert not partial.exists()


def test_solutions_without_annotations_are_refused(tmp_path: Path) -> None:
    recipe = annotated_recipe(tmp_path, [{"question": "two and two?", "answer": "It is 4.\n#### 4"}])
    with pytest.raises(RecipeError, match=r"of 1 training task of .* none has a solution that is annotated"):
        write_demonstrations(recipe, CHAT, tmp_path / "d.jsonl")


def test_where_no_problem_is_solved_it_says_why(tmp_path: Path) -> None:
    recipe = annotated_recipe(tmp_path, [{"question": "5 times 6?", "answer": "5*6 = <<5*6=30>>30\n#### 31"}])
    with pytest.raises(RecipeError, match="none of 1 candidates is kept: 1 the program prints another number"):
        write_demonstrations(recipe, CHAT, tmp_path / "d.jsonl")


def test_too_few_turns_for_a_repair_are_refused(tmp_path: Path) -> None:
    recipe = annotated_recipe(tmp_path, annotated(1), "demos.failed_share=0.5", "sft.max_turns=2")
    with pytest.raises(RecipeError, match=r"sft\.max_turns = 2: these demonstrations have up to 3 turns"):
        write_demonstrations(recipe, CHAT, tmp_path / "d.jsonl")


def remote(folder: Path, url: str, *changes: str) -> Recipe:
    rows = [{"question": f"What is {n} times 6?", "answer": str(n * 6)} for n in (5, 7)]
    openai = ("demos.kind=openai", f"demos.url={url}", "demos.model=big", *changes)
    return annotated_recipe(folder, rows, *openai)


def multiply(messages: Messages) -> str:
    """Wrong the first time that it is asked about 7; right about 5 at once, by a program."""
    if messages[-1]["content"].startswith("It printed:\n"):
        return f"So \\boxed{{{messages[-1]['content'].splitlines()[-1]}}}."
    if "7" in messages[-1]["content"]:
        return "I guess \\boxed{1}."
    return "I compute it.\n```python\nprint(5 * 6)\n```\nIt will be 31."


def test_a_task_that_a_mix_repeats_is_demonstrated_once(tmp_path: Path) -> None:
    """Two rollouts of one name, made at once, would speak with the teacher in one conversation."""
    sources = []
    for name, weight, numbers in (("few", 3, [5]), ("many", 1, [15, 25, 35])):
        rows = ({"question": f"What is {n} times 6 of 5?", "answer": "30"} for n in numbers)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        sources.append(f"{{path = '{tmp_path / name}.jsonl', weight = {weight}}}")
    with teacher_at(multiply) as server:
        mix = ("task.path=''", f"task.sources=[{', '.join(sources)}]", "sft.demonstrations=4")
        summary, found = made(remote(tmp_path, server.url, *mix), tmp_path / "d.jsonl")
    assert (summary.kept, dict(summary.rejected)) == (2, {})
    assert len({one.task for one in found}) == 2


def test_the_key_comes_from_the_environment_and_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with teacher_at(multiply) as server:
        made(remote(tmp_path, server.url, "demos.key_env=MY_KEY"), tmp_path / "d.jsonl")
    assert {authorization for authorization, _ in server.asked} == {"Bearer sk-secret"}
    assert "sk-secret" not in (tmp_path / "d.jsonl").read_text(encoding="utf-8")
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(RecipeError, match="key_env names MY_KEY, which is not set"):
        made(remote(tmp_path, "http://127.0.0.1:9", "demos.key_env=MY_KEY"), tmp_path / "e.jsonl")


def test_a_url_that_is_down_or_refuses_is_reported_before_work_starts(tmp_path: Path) -> None:
    with teacher_at(lambda messages: 401) as server:
        with pytest.raises(EngineError, match=r"demos\.url: the teacher at http://127.0.0.1.* status 401"):
            made(remote(tmp_path, server.url), tmp_path / "d.jsonl")
        assert len(server.asked) == 1
        url = server.url
    with pytest.raises(EngineError, match=r"demos\.url: the teacher at .* does not answer: ClientConnectorError"):
        made(remote(tmp_path, url), tmp_path / "d.jsonl")
    for key in ("url", "model"):
        with pytest.raises(RecipeError, match=rf"demos\.{key}: it is empty"):
            made(remote(tmp_path, url, f"demos.{key}=''"), tmp_path / "d.jsonl")


@pytest.mark.torch
@pytest.mark.parametrize("model", ["", "base"])
def test_a_model_here_teaches_and_another_ones_words_go_into_the_learners_template(tmp_path: Path, model: str) -> None:
    pytest.importorskip("torch", reason="a model's folder is found by the [train] extra")
    replies = ["```python\nprint(5 * 6)\n```", "So \\boxed{30}."]
    rows = [{"question": f"What is {n} times 6?", "answer": str(n * 6)} for n in (5, 7)]
    engine = (
        "demos.kind=engine", f"demos.model='{model}'", "demos.style=markdown", "demos.tries=2",
        "engine.kind=scripted",
    )  # fmt: skip
    recipe = annotated_recipe(tmp_path, rows, *engine, f"engine.replies={json.dumps(replies)}")
    summary, (one,) = made(recipe, tmp_path / "d.jsonl")
    assert (summary.kept, dict(summary.rejected)) == (1, {"wrong to the grader": 1})
    ids = [i for s in one.segments for i in s.ids or ()]
    assert CHAT.tokenizer.decode(ids) == one.text  # another model's ids would be other words
    assert one.text.startswith("<|im_start|>user\nWhat is 5 times 6?<|im_end|>\n<|im_start|>assistant\n```python")
    assert statuses(one) == ["ok"]


SPOKEN = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "\\boxed{2}"}]
ASKS = {"prompt": [*SPOKEN, {"role": "user", "content": "What is 5 times 6?"}], "answer": "30"}
OPENING = CHAT.prompt("What is 5 times 6?", before=[(m["role"], m["content"]) for m in SPOKEN])


def test_a_teacher_behind_a_url_is_sent_what_came_before_the_question(tmp_path: Path) -> None:
    with teacher_at(multiply) as server:
        url = ("demos.kind=openai", f"demos.url={server.url}", "demos.model=big")
        _, (one,) = made(annotated_recipe(tmp_path, [ASKS], *url), tmp_path / "d.jsonl")
    first = next(body["messages"] for _, body in server.asked if len(body["messages"]) > 1)
    assert first[1:] == ASKS["prompt"]
    assert one.prompt == OPENING


def transcript(n: int, *, fails: bool, right: bool) -> dict[str, object]:
    call = {"role": "assistant", "content": "```python\nprint(a)\n```" if fails else "```python\nprint(1)\n```"}
    told = "Traceback (most recent call last):\nNameError: name 'a' is not defined" if fails else "1"
    messages = [{"role": "user", "content": f"go {n}"}, call, {"role": "tool", "content": told},
                {"role": "assistant", "content": "It is 1."}]  # fmt: skip
    return {"messages": messages, "reward": 1.0 if right else 0.0}


def test_transcripts_go_through_the_template_with_the_wanted_share_of_failures(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    rows = [transcript(n, fails=n % 2 == 0, right=n % 5 != 0) for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = load_recipe(
        None, ["demos.kind=transcripts", f"demos.path={file}", "demos.keep=right", "demos.failed_share=0.25"]
    )
    summary, found = made(recipe, tmp_path / "d.jsonl")
    assert dict(summary.rejected) == {"not right, as its record says": 4}
    assert (summary.kept, summary.failed) == (11, 3)
    assert found[0].text.startswith("<|im_start|>user\ngo 1<|im_end|>\n<|im_start|>assistant\n```python\nprint(1)")
    assert {o.status for t in found for u in t.turns for o in u.observations} == {"ok", "error"}


def test_transcripts_are_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the hub's own library keeps them, without the network."""
    home = tmp_path / "datasets--ours--agentic"
    shown = home / "snapshots" / COMMIT
    shown.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs/main").write_text(COMMIT)
    (shown / "train.jsonl").write_text(json.dumps(transcript(3, fails=False, right=True)) + "\n", encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    _, found = made(load_recipe(None, ["demos.kind=transcripts", "demos.path=ours/agentic"]), tmp_path / "d.jsonl")
    assert [one.text.partition("go ")[2][0] for one in found] == ["3"]
    absent = load_recipe(None, ["demos.kind=transcripts", "demos.path=ours/absent"])
    with pytest.raises(CheckpointError, match="ours/absent could not be fetched: the hub cannot be reached"):
        write_demonstrations(absent, CHAT, tmp_path / "e.jsonl")


def test_transcripts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}\n", encoding="utf-8")
    recipe = load_recipe(None, ["demos.kind=transcripts", f"demos.path={tmp_path / 'mein.jsonl'}"])
    with pytest.raises(RecipeError, match=r"demos\.path: there is no file .*mein\.jsonl \(did you mean 'mine\.jsonl'"):
        write_demonstrations(recipe, CHAT, tmp_path / "d.jsonl")
    with pytest.raises(RecipeError, match=r"demos\.path: it is empty"):
        write_demonstrations(load_recipe(None, ["demos.kind=transcripts"]), CHAT, tmp_path / "d.jsonl")
