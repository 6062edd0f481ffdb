"""Transcripts as demonstrations: which are right as their records say, which are left out and why, and going on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.store import jsonl
from retcon.train.demos.making import write_demonstrations
from retcon.train.demos.transcripts import EMPTY, NOT_RIGHT, UNKNOWN, TranscriptSource
from retcon.train.demos.types import Made

CHAT = Chat(ByteTokenizer())


def said(name: str, **about: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": name}], **about}


def kept(folder: Path, *records: Mapping[str, object]) -> tuple[dict[str, float | None], dict[str, int]]:
    """What the model says in those that are kept, with their rewards; and why the others are not."""
    file = folder / "t.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    recipe = load_recipe(None, ["demos.kind=transcripts", f"demos.path={file}", "demos.keep=right"])
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
