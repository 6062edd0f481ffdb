"""Trajectories as dictionaries: round trips, unknown fields at every level, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError
from retcon.core.types import Cut, Observation, Parent, Segment, Trajectory, Turn
from strategies import trajectories


@given(trajectories())
def test_round_trip_through_json_is_exact(trajectory: Trajectory) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(trajectory)))) == trajectory


def full() -> dict[str, Any]:
    """A record with something at every level, and an unknown field there."""
    segment = {"kind": "sampled", "text": "x", "ids": [1, 2], "logprobs": [-0.1, -1], "versions": [3, 4], "new": 1}
    call = {"id": "0.0", "name": "python", "arguments": {"code": "x"}, "char": 0, "start": 0, "language": "shell"} | {
        "new": 2
    }
    observation = {"call_id": "0.0", "text": "", "status": "error", "error_type": "E", "seconds": 0.5, "rule": "r"}
    observation |= {"line": 3, "new": [3]}
    attempt = {"segments": [segment], "calls": [call], "observations": [observation], "stop": "call", "new": {"a": 4}}
    cut = {"turn": 2, "rule": "apology", "text": "Sorry.", "new": 7}
    repair = {"decision": "shallow", "attempts": 1, "similarity": 0.0, "reason": "r", "fresh": 2, "cut": [cut]}
    repair |= {"new": None}
    provenance = {"seed": 0, "step": 0, "index": 0, "model": "m", "purified": True, "encoded_by": "e", "new": 0.5}
    turn = attempt | {"abandoned": [attempt], "repair": repair, "entropy": 0.5, "new": "5"}
    branch = {"parent": "p", "root": "r", "turns": 1, "tokens": 2, "uncertainty": 0.5, "rise": 0.0}
    branch |= {"measure": "surprisal", "new": 8}
    top = {"id": "t", "task": "k", "prompt": [{"kind": "prompt", "text": "q", "new": 6}], "turns": [turn]}
    top |= {"branch": branch, "origin": {"source": "f:1", "format": "f", "record": [3], "new": 9}}
    return top | {"reward": 0.0, "stop": "turns", "answer": "", "provenance": provenance, "new": True}


def test_unknown_fields_are_kept_and_written_back_where_they_were() -> None:
    trajectory = from_dict(full())
    assert to_dict(trajectory) == full()
    assert trajectory.turns[0].abandoned[0].observations[0].extra == {"new": [3]}
    assert [type(x) for x in trajectory.turns[0].segments[0].logprobs or ()] == [float, float]  # -1 is read as -1.0
    assert trajectory.reward == 0.0  # zero is a reward, and is written
    assert trajectory.turns[0].repair is not None
    assert trajectory.turns[0].repair.similarity == 0.0


def test_what_has_its_default_is_left_out() -> None:
    bare = Trajectory("t", "k", (Segment("prompt", "q"),), (Turn((Segment("sampled", "a"),)),))
    assert to_dict(bare) == {
        "id": "t",
        "task": "k",
        "prompt": [{"kind": "prompt", "text": "q"}],
        "turns": [{"segments": [{"kind": "sampled", "text": "a"}]}],
    }
    nulls = to_dict(bare) | {"reward": None, "answer": None}
    assert from_dict(nulls) == bare


def test_an_extra_field_cannot_replace_a_known_one() -> None:
    trajectory = Trajectory("t", "k", (), (), extra={"id": "other", "reward": 1.0, "extra": {"a": 1}})
    assert to_dict(trajectory) == {"id": "t", "task": "k", "prompt": [], "turns": []}


def test_a_repair_of_an_older_file_was_cut_nowhere() -> None:
    repair = {"decision": "deep", "attempts": 1}
    turn = {"segments": [], "calls": [], "observations": [], "stop": "answer", "repair": repair}
    read = from_dict({"id": "t", "task": "k", "prompt": [], "turns": [turn]}).turns[0].repair
    assert read is not None
    assert (read.cut, read.reason, read.similarity) == ((), "", None)


DELETE = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["id"], DELETE, r"^here: Object missing required field `id`$"),
        (["turns", 0, "segments", 0, "text"], DELETE, r"^here: turns\[0\]\.segments\[0\]: Object missing .* `text`$"),
        (["turns"], {}, r"turns: Expected `array`, got `object`"),
        (["turns", 0], 7, r"turns\[0\]: Expected `object`, got `int`"),
        (["turns", 0, "calls"], None, r"turns\[0\]\.calls: Expected `array`, got `null`"),
        (["turns", 0, "segments", 0, "ids"], "x", r"turns\[0\]\.segments\[0\]\.ids: Expected `array.*`, got `str`"),
        (["turns", 0, "segments", 0, "ids", 1], 1.0, r"segments\[0\]\.ids\[1\]: Expected `int`, got `float`"),
        (["turns", 0, "segments", 0, "ids", 1], True, r"ids\[1\]: Expected `int`, got `bool`"),
        (["turns", 0, "segments", 0, "logprobs", 0], None, r"logprobs\[0\]: Expected `float`, got `null`"),
        (["turns", 0, "segments", 0, "logprobs"], [0.5], r"turns\[0\]\.segments\[0\]: 1 log-prob for 2 tokens"),
        (["turns", 0, "segments", 0, "ids"], None, r"turns\[0\]\.segments\[0\]: 2 log-probs for 0 tokens"),
        (["turns", 0, "segments", 0, "kind"], "sampld", r"kind: Invalid enum value 'sampld'"),
        (["turns", 0, "calls", 0, "arguments"], [], r"calls\[0\]\.arguments: Expected `str | object`, got `array`"),
        (["turns", 0, "abandoned", 0, "stop"], "", r"turns\[0\]\.abandoned\[0\]\.stop: Invalid enum value ''"),
        (["provenance", "purified"], 1, r"provenance\.purified: Expected `bool`, got `int`"),
        pytest.param(["reward"], 10**400, r"reward: Number out of range", id="no float holds it"),
    ],
)
def test_an_error_names_the_field(path: list[str | int], value: object, message: str) -> None:
    record = full()
    inner: Any = record
    for step in path[:-1]:
        inner = inner[step]
    if value is DELETE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    with pytest.raises(RecordError, match=message):
        from_dict(record, "here")


def test_every_field_of_a_record_is_read_back() -> None:
    """`parent` and `submitted` were kept in `extra`, and None in the trajectory that was read."""
    observation = Observation("0", "", "ok", submitted="42")
    written = Trajectory("t", "k", (), (Turn((), (), (observation,)),), parent=Parent("p", 0, "0", "subagent"))
    assert from_dict(json.loads(json.dumps(to_dict(written)))) == written


def test_files_that_had_these_in_extra_are_read_as_fields() -> None:
    """Written by versions that put them beside the fields that they knew: the same keys at the same level."""
    seen = {"call_id": "0.0", "text": "", "status": "error", "rule": "traceback", "line": 2}
    call = {"id": "0.0", "name": "bash", "arguments": {"code": "ls"}, "char": 0, "language": "shell"}
    cut = {"turn": 1, "rule": "apology", "text": "Sorry."}
    repair = {"decision": "shallow", "attempts": 1, "cut": [cut]}
    turn = {"segments": [], "calls": [call], "observations": [seen], "repair": repair}
    trajectory = from_dict({"id": "t", "task": "k", "prompt": [], "turns": [turn]})
    (read,) = trajectory.turns
    assert (read.observations[0].rule, read.observations[0].line) == ("traceback", 2)
    assert read.calls[0].language == "shell"
    assert read.repair is not None
    assert read.repair.cut == (Cut(1, "apology", "Sorry."),)
    assert read.observations[0].extra == read.calls[0].extra == read.repair.extra == {}
    with pytest.raises(RecordError, match=r"turns\[0\].repair.cut\[0\]: Object missing required field `rule`"):
        from_dict({"id": "t", "task": "k", "prompt": [], "turns": [turn | {"repair": repair | {"cut": [{"turn": 1}]}}]})


def test_a_trajectory_that_lacks_one_of_the_two_is_reported() -> None:
    with pytest.raises(RecordError, match=r"^here: Object missing required field `prompt`"):
        from_dict({"id": "t", "task": "k", "turns": []}, "here")
    with pytest.raises(RecordError, match=r"^here: Object missing required field `turns`"):
        from_dict({"id": "t", "task": "k", "prompt": []}, "here")
