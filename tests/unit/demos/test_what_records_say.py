"""Transcripts as demonstrations: which are right as their records say, which are left out and why, and going on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.codec import to_dict
from retcon.core.errors import RecordError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.store import jsonl
from retcon.train.demos.making import write_demonstrations
from retcon.train.demos.rolling import TOO_LONG
from retcon.train.demos.transcripts import EMPTY, NOT_RIGHT, UNKNOWN, TranscriptSource
from retcon.train.demos.types import Made

CHAT = Chat(ByteTokenizer())


def said(name: str, **about: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": name}], **about}


def kept(folder: Path, *records: object, keep: str = "right") -> tuple[dict[str, float | None], dict[str, int]]:
    """What the model says in those that are kept, with their rewards; and why the others are not."""
    file = folder / "t.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    recipe = load_recipe(None, ["demos.kind=transcripts", f"demos.path={file}", f"demos.keep={keep}"])
    summary = write_demonstrations(recipe, CHAT, folder / "d.jsonl")
    found = jsonl.read(folder / "d.jsonl")
    rewards = {one.turns[-1].text.removesuffix("<|im_end|>"): one.reward for one in found}
    return rewards, dict(summary.rejected)


@pytest.mark.parametrize("name", ["success", "correct", "is_correct", "reward", "score"])
def test_a_record_says_whether_it_is_right_at_its_top_or_an_object_below(name: str, tmp_path: Path) -> None:
    deep = said("too deep", info={"extra": {name: True}})
    rewards, rejected = kept(
        tmp_path,
        said("right", **{name: True}),
        said("some", **{name: 0.25}),
        said("below", info={name: 1}),
        said("wrong", **{name: False}),
        said("none", **{name: 0}),
        said("less", metadata={name: -1.0}),
        said("words", **{name: "yes"}),
        deep,
    )
    assert rewards == {"right": 1.0, "some": 0.25, "below": 1.0}
    assert rejected == {NOT_RIGHT: 3, UNKNOWN: 2}


def test_what_stands_at_the_top_comes_first(tmp_path: Path) -> None:
    rewards, rejected = kept(
        tmp_path, said("right", correct=True, info={"correct": False}), said("wrong", score=0, info={"correct": True})
    )
    assert rewards == {"right": 1.0}
    assert rejected == {NOT_RIGHT: 1}


def test_how_right_each_is_stays_with_it_where_all_are_kept(tmp_path: Path) -> None:
    """Also in a record that is a list, and so has no place to say it."""
    rewards, rejected = kept(
        tmp_path,
        said("right", success=True),
        said("wrong", success=False),
        said("some", score=0.25),
        said("less", score=-3),
        said("bare")["messages"],
        keep="all",
    )
    assert rewards == {"right": 1.0, "wrong": -1.0, "some": 0.25, "less": -3.0, "bare": None}
    assert not rejected


def own(*turns: Segment, reward: float | None = None) -> Trajectory:
    return Trajectory("t", "t", CHAT.prompt("?"), tuple(Turn((one,)) for one in turns), reward=reward)


def test_a_trajectory_that_knows_its_reward_is_not_asked_for_another(tmp_path: Path) -> None:
    rewards, _ = kept(tmp_path, {**to_dict(own(CHAT.wrote("own"), reward=0.5)), "success": False})
    assert rewards == {"own": 0.5}


def made_of(file: Path, *bounds: tuple[int, int], room: int = 4000) -> list[Made]:
    source = TranscriptSource([file], CHAT, room, only_right=False, inputs={})

    async def made() -> list[Made]:
        return [await source.make(start, stop, 0) for start, stop in bounds]

    return asyncio.run(made())


@pytest.mark.parametrize(
    ("wrote", "why"),
    [
        (Segment("sampled", "A"), "a sampled segment has no ids .*: an audit\\? Give what `retcon purify` wrote to -o"),
        (Segment("sampled", "A", (66,)), "the ids of 'A' are 'B' to this model"),
    ],
)
def test_what_cannot_be_learnt_by_its_ids_is_refused_by_its_line(wrote: Segment, why: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    jsonl.write(file, [own(CHAT.wrote("A")), own(wrote)])
    with pytest.raises(RecordError, match=rf"t\.jsonl, line 2: .*{why}"):
        made_of(file, (0, 2))


def test_what_just_has_room_is_kept(tmp_path: Path) -> None:
    file, one = tmp_path / "t.jsonl", own(CHAT.wrote("A"))
    jsonl.write(file, [one])
    room = sum(len(segment.ids or ()) for segment in one.segments)
    (whole,), (none,) = made_of(file, (0, 1), room=room), made_of(file, (0, 1), room=room - 1)
    assert ([kept.id for kept in whole.kept], whole.rejected) == (["t"], {})
    assert (none.kept, none.rejected) == ((), {TOO_LONG: 1})


def test_a_record_of_several_texts_is_one_candidate(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({"prompt": "?", "response": list(texts)}) + "\n" for texts in ("ab", "cde")))
    for bounds in (((0, 1), (1, 4)), ((1, 4),)):
        found = made_of(file, *bounds)[-1]
        assert ([one.text[-11] for one in found.kept], found.seen) == (["c", "d", "e"], 1)
    assert made_of(file, (0, 9))[0].seen == 2


def test_stretches_in_their_order_read_a_file_once(tmp_path: Path) -> None:
    """Which may be large; what was read of it is not read again."""
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(said(letter)) + "\n" for letter in "abc"))
    source = TranscriptSource([file], CHAT, 4000, only_right=False, inputs={})

    async def seen() -> tuple[int, int]:
        first = await source.make(0, 2, 0)
        file.unlink()
        return first.seen, (await source.make(2, 4, 2)).seen

    assert asyncio.run(seen()) == (2, 1)


def test_what_has_no_words_of_the_models_is_left_out(tmp_path: Path) -> None:
    silent = said("told", correct=True)
    silent["messages"][-1]["weight"] = 0
    rewards, rejected = kept(tmp_path, said("learnt", correct=True), silent)
    assert rewards == {"learnt": 1.0}
    assert rejected == {EMPTY: 1}


def test_a_source_that_goes_on_begins_with_the_record_after_the_last(tmp_path: Path) -> None:
    for name, letters in (("a", "abc"), ("b", "defg")):
        rows = [said(letter) for letter in letters]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def source() -> TranscriptSource:
        files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        return TranscriptSource(files, CHAT, 4000, only_right=False, inputs={})

    def letters(stretch: Made) -> str:
        return "".join(one.turns[-1].text.removesuffix("<|im_end|>") for one in stretch.kept)

    async def stretches(of: TranscriptSource, *bounds: tuple[int, int]) -> list[tuple[str, int]]:
        found = [await of.make(start, stop, 0) for start, stop in bounds]
        return [(letters(one), one.seen) for one in found]

    whole = asyncio.run(stretches(source(), (0, 2), (2, 5), (5, 9)))
    assert whole == [("ab", 2), ("cde", 3), ("fg", 2)]
    assert asyncio.run(stretches(source(), (2, 5), (5, 9))) == whole[1:]
    assert asyncio.run(stretches(source(), (5, 9), (0, 2))) == [whole[2], whole[0]]
