"""What the index of trajectory files finds, and that it is made anew from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retcon.core.errors import CheckpointError, RecordError
from retcon.core.types import Observation, Parent, Provenance, RepairRecord, Segment, ToolCall, Trajectory, Turn
from retcon.store import jsonl
from retcon.store.index import Index, Query
from retcon.store.jsonl import line_of
from retcon.store.members import write_members
from retcon.store.whole import lock_folder


def turn(code: str, output: str, error: str | None = None, **more: object) -> Turn:
    return Turn(
        segments=(Segment("sampled", f"Now I run it. {code}"),),
        calls=(ToolCall(id="c", name="python", arguments={"code": code}, char=0),),
        observations=(Observation(call_id="c", text=output, status="error" if error else "ok", error_type=error),),
        **more,
    )  # fmt: skip


def rollout(number: int, *turns: Turn, step: int = 1, **more: object) -> Trajectory:
    made = Provenance(step=step, index=number)
    prompt = (Segment("prompt", f"<|im_start|>user\nHow many zebras are {number}?<|im_end|>"),)
    return Trajectory(f"zoo/{step}/{number}", "zoo", prompt, turns, provenance=made, **more)


FAILED = turn("print(totl)", "name 'totl' is not defined", "NameError")
FIXED = turn("print(total_of)", "7", abandoned=(FAILED,), repair=RepairRecord(decision="shallow", attempts=1))
STEPS = {
    1: [
        rollout(0, turn("print(1)", "1"), reward=1.0, selection="kept", answer="1", expected="1", reason="equal"),
        rollout(1, FIXED, reward=-1.0, selection="wrong"),
        rollout(2, FAILED, reward=-1.0, selection="kept", stop="turns"),
    ],
    2: [rollout(0, FAILED, step=2), rollout(1, turn("print(2)", "2"), step=2, reward=1.0)],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "trajectories").mkdir()
    for step, made in STEPS.items():
        write_members(tmp_path / f"trajectories/step-00000{step}.jsonl.zst", map(line_of, made))
    return tmp_path


@pytest.fixture
def index(run: Path) -> Index:
    made = Index(run)
    assert made.update() == 5
    return made


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (Query(), "1/0 1/1 1/2 2/0 2/1"), (Query(failed=True), "1/1 1/2 2/0"),
        (Query(error="NameError", step=(1, 1)), "1/1 1/2"), (Query(error="Name_rror"), ""),
        (Query(verdict="right"), "1/0 2/1"), (Query(dropped=True), "1/1"), (Query(repair="shallow"), "1/1"),
        (Query(repair="none", sort="-id"), "2/1 2/0 1/2 1/0"), (Query(stop="turns"), "1/2"),
        (Query(group="zoo/2"), "2/0 2/1"), (Query(group="zoo"), "1/0 1/1 1/2 2/0 2/1"),
        (Query(text="total_of"), "1/1"), (Query(text="tot", field="code"), "1/1 1/2 2/0"),
        (Query(text="is not defined", field="output"), "1/1 1/2 2/0"), (Query(text="defined not"), ""),
        (Query(text='zebras "are" 1?'), "1/1 2/1"), (Query(text='")) OR *'), ""),
    ],
)  # fmt: skip
def test_what_a_query_finds(query: Query, names: str, index: Index) -> None:
    found = [row["name"].removeprefix("zoo/") for row in index.rows(query)]
    assert found == names.split()
    assert index.counts(query).total == len(found)


def test_rows_name_the_field_and_counts_the_values(index: Index) -> None:
    assert index.rows(Query(text="total_of"))[0]["found"] == ["words", "code"]
    facets = index.counts(Query()).facets
    assert facets["errors"] == {"NameError": 3}
    assert facets["verdict"] == {"right": 2, "wrong": 2, "": 1}
    assert facets["selection"] == {"kept": 2, "wrong": 1, "": 2}


def test_a_line_is_read_back_and_an_id_found_by_its_beginning(index: Index) -> None:
    number = index.number_of("zoo/2/1")
    assert number is not None
    assert jsonl.read_line(index.line(number), "") == STEPS[2][1]
    assert index.number_of("zoo/2/") is None, "two begin so"


def test_files_that_change_grow_or_go_are_followed(index: Index, run: Path) -> None:
    write_members(run / "trajectories/step-000002.jsonl.zst", [line_of(replace(STEPS[2][0], reward=1.0))])
    (run / "trajectories/step-000001.jsonl.zst").unlink()
    with jsonl.Appender(run / "more.jsonl") as file:
        file.add(rollout(7))
        assert index.update() == 2
        file.add(rollout(8))
    assert index.update() == 1
    assert [row["name"] for row in index.rows(Query(sort="name"))] == ["zoo/1/7", "zoo/1/8", "zoo/2/0"]
    assert index.counts(Query(text="totl")).total == 1


def test_a_damaged_index_and_a_torn_file_are_no_hindrance(index: Index, run: Path) -> None:
    index.close()
    index.path.write_bytes(b"no database" * 500)
    file = run / "trajectories/step-000001.jsonl.zst"
    jsonl.write(run / "plain.jsonl", STEPS[1])
    whole = (run / "plain.jsonl").read_bytes()
    (run / "plain.jsonl").write_bytes(whole[:-20])
    file.write_bytes(file.read_bytes()[:-9])
    again = Index(run)
    again.update()
    assert [row["name"] for row in again.rows(Query())] == ["zoo/1/0", "zoo/1/1", "zoo/2/0", "zoo/2/1"]


def test_failures_are_counted_by_step_and_after_the_first_repair(index: Index) -> None:
    (failure,) = index.failures()
    about = {name: failure[name] for name in ("error", "text", "count", "repaired", "first", "last", "later")}
    assert about == {"error": "NameError", "text": "name 'totl' is not defined", "count": 3, "repaired": 1, "first": 1,
                     "last": 2, "later": 1}  # fmt: skip
    assert failure["steps"] == [(1, 2, 1), (2, 1, 0)]
    assert index.failures("no such") == []
    assert index.message_of("NameError", "term 1\nname 'totl' is not defined\n") == failure["id"]
    assert index.steps(Query(message=failure["id"])) == [(1, 2), (2, 1)]


def test_tasks_have_their_rates_and_errors(index: Index) -> None:
    (task,) = index.tasks()
    assert task == {"task": "zoo", "rollouts": 5, "judged": 4, "right": 2, "errors": {"NameError": 3},
                    "ends": {"answer": 4, "turns": 1}}  # fmt: skip


def test_a_tree_is_counted_and_its_children_are_found(tmp_path: Path) -> None:
    parts = [replace(rollout(n, turn("1", "1")), parent=Parent("zoo/1/0", 0, "c")) for n in (1, 2)]
    inner = replace(rollout(3, turn("1", "1")), parent=Parent("zoo/1/2", 0, "c", "subagent"))
    file = tmp_path / "made.jsonl"
    jsonl.write(file, [*parts, inner, rollout(0, turn("2", "2")), rollout(9, turn("3", "3"))])
    index = Index(file, tmp_path / "index.sqlite")
    index.update()
    assert [row["name"] for row in index.rows(Query(tree=(2, 9)))] == ["zoo/1/1", "zoo/1/2", "zoo/1/3", "zoo/1/0"]
    assert [(row["name"], row["tree"], row["relation"]) for row in index.rows(Query(parent="zoo/1/2"))] == [
        ("zoo/1/3", 4, "subagent")
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_what_is_deleted_or_redacted_stays_so_when_the_index_is_made_anew(suffix: str, tmp_path: Path) -> None:
    file, secret = tmp_path / f"made{suffix}", 'pass"word'
    write_members(file, [line_of(rollout(n, turn(f"print({n})", f"{secret} {n}"))) for n in range(3)])
    index = Index(tmp_path, tmp_path / "index.sqlite")
    index.update()
    first, second, _ = index.numbers(Query())
    index.delete(first)
    assert index.redact(index.number_of("zoo/1/1") or 0, secret) == 1
    with pytest.raises(RecordError, match="does not occur"):
        index.redact(index.number_of("zoo/1/1") or 0, secret)
    for opened in (index, Index(tmp_path, tmp_path / "anew.sqlite")):
        opened.update()
        assert [row["name"] for row in opened.rows(Query(sort="name"))] == ["zoo/1/1", "zoo/1/2"]
        assert [row["name"] for row in opened.rows(Query(text=secret))] == ["zoo/1/2"]
        assert b"[redacted] 1" in opened.line(opened.number_of("zoo/1/1") or 0)
    if suffix == ".jsonl":
        with lock_folder(tmp_path), pytest.raises(CheckpointError, match="at work"):
            index.delete(index.number_of("zoo/1/2") or 0)
    assert second


def test_a_redacted_segment_has_no_ids_that_tell_it(tmp_path: Path) -> None:
    made = rollout(0, turn("print(1)", "1"))
    held = Segment("sampled", "the key is abc", (1, 2, 3), (-0.1, -0.2, -0.3))
    jsonl.write(tmp_path / "made.jsonl", [replace(made, turns=(replace(made.turns[0], segments=(held,)),))])
    index = Index(tmp_path, tmp_path / "index.sqlite")
    index.update()
    index.redact(1, "abc")
    (read,) = jsonl.read(tmp_path / "made.jsonl")
    assert read.turns[0].segments[0] == Segment("sampled", "the key is [redacted]")
