"""Preference pairs out of repairs, and the file that TRL's DPO trainer reads."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from playing import call, hermes_call, play
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.codec import to_dict
from retcon.core.errors import RecordError
from retcon.core.types import Branch, Completion, Pair, history_ids
from retcon.purify.offline import Repairer
from retcon.purify.pairs import call_mask, preference_pairs
from retcon.purify.saar import Saar
from retcon.store import jsonl
from retcon.store.jsonl import pair_line, write_pairs
from retcon.transcripts.formats.retcon import Ours

BAD, GOOD, OTHER, DONE = "print(6 * valu)", "print(6 * value)", "import math\nx = math.factorial(3)", "It is 42."
END = "<|im_end|>"


def counted(completion: Completion) -> str:
    """The text that the loss counts."""
    ids = [i for i, m in zip(completion.ids, completion.mask, strict=True) if m]
    return ByteTokenizer().decode(ids)


def test_a_shallow_repair_pairs_the_calls_after_the_same_reasoning():
    p = play([call(OTHER), call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    (pair,) = preference_pairs(p.trajectory)
    assert pair.id == "t/0/0/1/0"
    assert (pair.chosen.written, pair.rejected.written) == (call(GOOD, "First. ") + END, call(BAD, "First. ") + END)
    assert (counted(pair.chosen), counted(pair.rejected)) == (call(GOOD) + END, call(BAD) + END)
    assert pair.prompt_ids == p.engine.seen[1][1]  # h_t: where the failure was sampled
    assert pair.prompt == p.prompt(1)
    assert pair.prompt_ids + pair.chosen.ids == history_ids(p.trajectory)[: len(pair.prompt_ids + pair.chosen.ids)]
    assert pair.rejected.ids == p.turns[1].abandoned[0].segments[0].ids
    assert pair.about == {
        "decision": "shallow", "similarity": p.turns[1].repair.similarity, "status": "error", "error_type": None
    }  # fmt: skip


def test_a_deep_repair_counts_the_calls_and_not_the_reasoning_of_either():
    p = play([call(BAD, "First. "), call(OTHER, "Oops. "), DONE], {BAD: "timeout"}, repair=Saar())
    (pair,) = preference_pairs(p.trajectory)
    assert pair.chosen.written == call(OTHER, "Oops. ") + END
    assert (counted(pair.chosen), counted(pair.rejected)) == (call(OTHER) + END, call(BAD) + END)
    assert (pair.about["decision"], pair.about["status"]) == ("deep", "timeout")


def test_the_history_of_a_later_pair_is_purified():
    replies = [call(BAD, "a. "), call(GOOD, "b. "), call("bad(2)", "c. "), call(OTHER, "d. "), DONE]
    p = play(replies, {BAD: "error", "bad(2)": "error"}, repair=Saar())
    first, second = preference_pairs(p.trajectory)
    assert second.prompt.startswith(first.prompt + first.chosen.written)
    assert BAD not in second.prompt


def test_later_attempts_that_failed_are_rejected_on_request():
    tries = [call(BAD), call("pass"), call("fail(1)"), call(GOOD), DONE]
    p = play(tries, {BAD: "error", "fail(1)": "error"}, repair=Saar())
    assert [pair.id for pair in preference_pairs(p.trajectory)] == ["t/0/0/0/0"]
    every = list(preference_pairs(p.trajectory, rejected="all"))
    assert [counted(pair.rejected) for pair in every] == [call(BAD) + END, call("fail(1)") + END]  # not the no-op
    assert {pair.prompt for pair in every} == {p.prompt(0)}


def test_of_several_calls_the_pair_tells_of_the_one_that_failed():
    p = play([hermes_call(GOOD) + hermes_call(BAD), hermes_call(GOOD) + hermes_call(OTHER), DONE],
             {BAD: ("no value", "error", "NameError")}, repair=Saar(), style="hermes")  # fmt: skip
    (pair,) = preference_pairs(p.trajectory)
    assert [o.status for o in p.turns[0].abandoned[0].observations] == ["ok", "error"]
    assert (pair.about["status"], pair.about["error_type"]) == ("error", "NameError")


def test_a_call_that_the_machine_lost_is_not_what_the_pair_tells_of():
    p = play([hermes_call(GOOD) + hermes_call(BAD), hermes_call(GOOD) + hermes_call(OTHER), DONE],
             {BAD: ("no value", "error", "NameError")}, repair=Saar(), style="hermes")  # fmt: skip
    turn = p.turns[0]
    failed, *others = turn.abandoned
    lost = replace(failed.observations[0], status="infrastructure", error_type="Gone")
    turn = replace(turn, abandoned=(replace(failed, observations=(lost, failed.observations[1])), *others))
    (pair,) = preference_pairs(replace(p.trajectory, turns=(turn, *p.turns[1:])))
    assert (pair.about["status"], pair.about["error_type"]) == ("error", "NameError")


def test_where_it_is_unknown_where_a_call_begins_nothing_is_counted():
    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    turn = p.turns[0]
    unknown = replace(turn, calls=(replace(turn.calls[0], start=None),))
    assert call_mask(turn) == (0,) * len("First. ") + (1,) * (len(call(GOOD)) + 1)
    assert call_mask(unknown) is None
    (pair,) = preference_pairs(replace(p.trajectory, turns=(unknown, *p.turns[1:])))
    assert pair.chosen.mask is None
    assert pair.rejected.mask is not None


def test_a_turn_without_a_call_has_nothing_that_is_counted():
    (turn,) = play([DONE], {}).turns
    assert call_mask(turn) is None


def test_without_a_fix_there_is_no_pair():
    tries = ["fail(0)", "fail(1)"]
    unrepaired = play([*map(call, tries), DONE], dict.fromkeys(tries, "error"), repair=Saar(attempts=1))
    answered = play([*map(call, tries), DONE], dict.fromkeys(tries, "error"), repair=Saar())
    assert [t.repair.decision for t in (unrepaired.turns[0], answered.turns[0])] == ["unrepaired", "answered"]
    for p in (unrepaired, answered, play([call(GOOD), DONE], {}, repair=Saar())):
        assert list(preference_pairs(p.trajectory)) == []


def test_the_file_has_what_trl_reads_and_the_ids_beside_it(tmp_path):
    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    (pair,) = preference_pairs(p.trajectory)
    file = tmp_path / "pairs.jsonl.gz"
    assert write_pairs(file, [pair]) == 1
    (row,) = map(json.loads, gzip.decompress(file.read_bytes()).splitlines())
    assert (row["prompt"], row["chosen"], row["rejected"]) == (pair.prompt, pair.chosen.written, pair.rejected.written)
    assert row["tokens"] == {
        "prompt": list(pair.prompt_ids), "chosen": list(pair.chosen.ids), "chosen_mask": list(pair.chosen.mask),
        "rejected": list(pair.rejected.ids), "rejected_mask": list(pair.rejected.mask),
    }  # fmt: skip
    assert (row["id"], row["decision"]) == (pair.id, "shallow")


def test_the_example_of_the_documentation_writes_the_pairs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "purify" / "saar.md").read_text(encoding="utf-8")
    (program,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pairs.jsonl" in text)
    (file,) = re.findall(r'"(runs/.*?)"', program)
    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    (tmp_path / file).parent.mkdir(parents=True)
    jsonl.write(tmp_path / file, [p.trajectory])
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert (tmp_path / "pairs.jsonl").read_bytes() == b"".join(map(pair_line, preference_pairs(p.trajectory)))


def test_pairs_of_messages_have_no_ids():
    asked = ({"role": "user", "content": "6 × 7?"},)
    said = [({"role": "assistant", "content": text},) for text in ("42", "41")]
    pair = Pair("x", asked, *map(Completion, said), about={"rule": "traceback"})
    assert json.loads(pair_line(pair)) == {
        "prompt": [{"role": "user", "content": "6 × 7?"}], "chosen": [{"role": "assistant", "content": "42"}],
        "rejected": [{"role": "assistant", "content": "41"}], "id": "x", "rule": "traceback",
    }  # fmt: skip


def test_what_is_no_pair_is_refused_by_name():
    text = Completion("a")
    with pytest.raises(ValueError, match="pair x mixes text and messages"):
        Pair("x", ({"role": "user", "content": "?"},), text, text)
    with pytest.raises(ValueError, match="a mask of 2 for 1 token"):
        Completion("a", (1,), (0, 1))
    with pytest.raises(RecordError, match=r"pair x.*own: tokens"):
        pair_line(Pair("x", "?", text, text, about={"tokens": 1}))
    with pytest.raises(RecordError, match="pair x cannot be written"):
        pair_line(Pair("x", "?", text, text, about={"similarity": float("nan")}))


def test_a_turn_that_a_branch_shares_is_a_pair_of_the_rollout_that_sampled_it():
    """A file has both, and each branch would count it once more."""
    p = play([call(BAD), call(GOOD), call(BAD), call(GOOD), DONE], {BAD: "error"}, repair=Saar())
    branch = replace(p.trajectory, id="t/0/1", branch=Branch("t/0/0", "t/0/0", 1, 50, 1.0, 0.5))
    assert [pair.id for pair in preference_pairs(p.trajectory)] == ["t/0/0/0/0", "t/0/0/1/0"]
    assert [pair.id for pair in preference_pairs(branch)] == ["t/0/1/1/0"]


def test_what_is_repaired_offline_in_a_turn_that_a_branch_shares_is_its_pair_all_the_same():
    """How many turns of the result it shares is not known, and its parent may have been left as it was."""
    p = play([call(BAD), call(GOOD), DONE], {BAD: "error"})
    branch = replace(p.trajectory, branch=Branch("t/0/9", "t/0/9", 2, 50, 1.0, 0.5))
    reading = Ours().read(to_dict(branch), "")
    assert len(list(reading.pairs([Repairer()(one) for one in reading.trajectories]))) == 1
