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
from retcon.train.demos.transcripts import NOT_RIGHT, TranscriptSource
from retcon.train.demos.types import DemoBatch

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


def test_what_stands_at_the_top_comes_first(tmp_path: Path) -> None:
    rewards, rejected = kept(
        tmp_path, said("right", correct=True, info={"correct": False}), said("wrong", score=0, info={"correct": True})
    )
    assert rewards == {"right": 1.0}
    assert rejected == {NOT_RIGHT: 1}


def own(*turns: Segment, reward: float | None = None) -> Trajectory:
    return Trajectory("t", "t", CHAT.prompt("?"), tuple(Turn((one,)) for one in turns), reward=reward)


def test_a_trajectory_that_knows_its_reward_is_not_asked_for_another(tmp_path: Path) -> None:
    rewards, _ = kept(tmp_path, {**to_dict(own(CHAT.render_turn("own"), reward=0.5)), "success": False})
    assert rewards == {"own": 0.5}


def made_of(file: Path, *bounds: tuple[int, int], room: int = 4000) -> list[DemoBatch]:
    source = TranscriptSource([file], CHAT, room, only_right=False, inputs={})

    async def made() -> list[DemoBatch]:
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
    jsonl.write(file, [own(CHAT.render_turn("A")), own(wrote)])
    with pytest.raises(RecordError, match=rf"t\.jsonl, line 2: .*{why}"):
        made_of(file, (0, 2))


def test_what_just_has_room_is_kept(tmp_path: Path) -> None:
    file, one = tmp_path / "t.jsonl", own(CHAT.render_turn("A"))
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
