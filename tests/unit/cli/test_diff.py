"""Which trajectories `retcon diff` shows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from comparing import FIX, repaired, trajectory
from retcon.cli.app import app
from retcon.cli.transcripts import Kind
from retcon.core.errors import RecordError
from retcon.core.types import Decision
from retcon.store import jsonl


def output_of(*words: object, command: str = "diff") -> str:
    return CliRunner().invoke(app, [command, *map(str, words)], catch_exceptions=False).output


def shown(*words: object) -> list[str]:
    """The ids of what is shown."""
    return [line.partition(" · ")[0] for line in output_of(*words).splitlines() if " · turn " in line]


def test_an_id_means_its_trajectory_though_others_begin_with_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    jsonl.write(
        audit, [repaired("in.jsonl:10"), repaired("in.jsonl:1"), trajectory("in.jsonl:2", FIX), repaired("in.jsonl:20")]
    )
    assert shown(audit, "in.jsonl:1") == ["in.jsonl:1"]
    assert shown(audit, "in.jsonl:") == ["in.jsonl:10", "in.jsonl:1", "in.jsonl:20"]
    with pytest.raises(RecordError, match=r"nothing is repaired in 'in\.jsonl:2'"):
        shown(audit, "in.jsonl:2")


@pytest.fixture
def seven(tmp_path: Path) -> Path:
    jsonl.write(audit := tmp_path / "audit.jsonl", [repaired(f"in.jsonl:{n}") for n in range(7)])
    return audit


def test_the_first_five_are_shown_and_how_many_more_there_are(seven: Path) -> None:
    assert shown(seven) == [f"in.jsonl:{n}" for n in range(5)]
    assert output_of(seven).splitlines()[-1] == "and 2 more: --all shows them"
    for words in (("--all",), ("in.jsonl",), ("--sample", 7)):
        assert shown(seven, *words) == [f"in.jsonl:{n}" for n in range(7)]
        assert "more: --all" not in output_of(seven, *words)


def test_a_draw_is_of_its_seed_in_the_file_s_order_and_fair(seven: Path) -> None:
    drawn = [shown(seven, "--sample", 3, "--seed", seed) for seed in range(12)]
    assert drawn[:3] == [shown(seven, "--sample", 3, "--seed", seed) for seed in range(3)]
    assert drawn[0] == shown(seven, "--sample", 3)
    assert all(one == sorted(one) and len(set(one)) == 3 for one in drawn)
    often = Counter(id for one in drawn for id in one)
    assert len(often) == 7, often
    assert max(often.values()) < 10, often  # 5 on average
    assert len(shown(seven, "--sample", 9)) == 7


def test_a_kind_is_a_decision_and_what_is_repaired_was_replaced(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    jsonl.write(audit, [repaired(name, decision=name) for name in get_args(Decision)])
    for kind in get_args(Decision):
        assert shown(audit, "--kind", kind, "--all") == [kind]
    assert shown(audit) == shown(audit, "--kind", "repaired") == ["shallow", "deep", "resampled"]
    assert shown(audit, "--kind", "any", "--all") == [*get_args(Decision)]
    assert {*get_args(Kind)} == {*get_args(Decision), "repaired", "any"}
    jsonl.write(audit, [repaired("t")])
    with pytest.raises(RecordError, match=r"nothing is deep in it; --kind any shows what was looked at"):
        shown(audit, "--kind", "deep")


@pytest.mark.parametrize(("printed", "repairs"), [("NameError: name 'math' is not defined", True), ("2", False)])
def test_purify_names_it_where_it_has_something_to_show(printed: str, repairs: bool, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "What is the gcd?"}]
    for code, output in (("print(math.gcd(4, 6))", printed), ("import math\nprint(math.gcd(4, 6))", "2")):
        arguments = json.dumps({"code": code})
        call = {"id": code, "type": "function", "function": {"name": "python", "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": code, "content": output},
        ]
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": [*messages, {"role": "assistant", "content": "2"}]}))
    told = output_of(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", command="purify")
    assert ("try: retcon diff" in told) == repairs
    if repairs:
        assert shown(tmp_path / "out.audit.jsonl")
    with pytest.raises(RecordError, match=r"out\.jsonl, line 1: .*; the audit of out\.jsonl is .*out\.audit\.jsonl"):
        shown(tmp_path / "out.jsonl")
