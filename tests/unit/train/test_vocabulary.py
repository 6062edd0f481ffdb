"""Token ids of one model are not learnt by another, which reads something else in them; whoever wrote the texts beside
them may have done so in its own way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import RecordError
from retcon.core.types import Completion, Pair, Segment, Trajectory, Turn
from retcon.store import jsonl
from retcon.store.jsonl import write_pairs
from retcon.train.datasets.demonstrations import check_texts, read_samples, vocabulary_of
from retcon.train.datasets.preferences import read_preferences
from retcon.train.demos.making import demonstrations

TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER)
END = TOKENIZER.special_id("<|im_end|>")
pytestmark = pytest.mark.filterwarnings("ignore:.*none calls a tool")


class Others(ByteTokenizer):
    """As many tokens as `ByteTokenizer`, in another order."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [i ^ 1 if i < 256 else i for i in super().encode(text, special=special)]

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([i ^ 1 if i < 256 else i for i in ids])


OTHERS = Chat(Others())


def trajectory(chat: Chat) -> Trajectory:
    return Trajectory("t", "t", chat.prompt("What is 6 · 7?"), (Turn((chat.render_turn("It is 42."),)),))


def test_demonstrations_of_another_model_are_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    jsonl.write(file, [trajectory(CHAT), trajectory(OTHERS)])
    with pytest.raises(
        RecordError, match=r"d\.jsonl, line 2: the ids of .*user.* to this model: they are another model's"
    ):
        read_samples(file, CHAT, vocabulary=TOKENIZER.size)
    jsonl.write(file, [trajectory(OTHERS)])
    assert len(read_samples(file, OTHERS, vocabulary=TOKENIZER.size)) == 1


def test_demonstrations_are_not_made_of_another_models(tmp_path: Path) -> None:
    jsonl.write(tmp_path / "t.jsonl", [trajectory(OTHERS)])
    recipe = load_recipe(None, ["demos.kind=transcripts", f"demos.path={tmp_path / 't.jsonl'}"])
    with pytest.raises(RecordError, match=r"t\.jsonl, line 1: the ids of"):
        asyncio.run(demonstrations(recipe, CHAT))
    assert asyncio.run(demonstrations(recipe, OTHERS)) == [trajectory(OTHERS)]


def test_pairs_of_another_model_are_refused_by_line(tmp_path: Path) -> None:
    def pair(tokenizer: ByteTokenizer) -> Pair:
        prompt, good, bad = (tuple(tokenizer.encode(text)) for text in ("asked", "good", "bad"))
        return Pair("p", "asked", Completion("good", good), Completion("bad", bad), prompt)

    file = tmp_path / "p.jsonl"
    write_pairs(file, [pair(TOKENIZER), pair(Others())])
    with pytest.raises(RecordError, match=r"p\.jsonl, line 2: the ids of 'asked' are .* to this model"):
        read_preferences(file, CHAT, vocabulary=TOKENIZER.size)
    messages = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    told = {"prompt": [{"role": "user", "content": "U"}], **messages}
    file.write_text(json.dumps({**told, "tokens": {"prompt": [1], "chosen": [2], "rejected": [3]}}) + "\n")
    assert len(read_preferences(file, CHAT, vocabulary=TOKENIZER.size)) == 1, "its messages are no text to compare"


E = tuple("é".encode())


@pytest.mark.parametrize(
    "said",
    [
        [("é", E)],
        [("a\ufffd", (97, E[0])), ("\ufffdb", (E[1], 98))],
        [("aé", (97, E[0])), ("b", (E[1], 98))],
        [("a\ufffd\ufffdb", (97, *E, 98))],
        [("", (97, END)), ("b", (98,))],
        [("e\u0301 ", E)],
        [("A b", (97, 98, END))],
        [("ab<|im_end|>", (97, 98))],
        [("a", (97, 5000, -100))],
        [("", ())],
        [("a\0", (97, 0))],
        [("a\ufffdb", (97, *E, 98))],
    ],
    ids=["as it is", "cut", "cut, and whole", "cut, and put together", "unsaid", "decomposed", "no controls, no case, "
         "spaces", "a control too many", "padding", "nothing", "the first id", "one cut character"],
)  # fmt: skip
def test_texts_that_were_written_otherwise_are_the_models_own(said: list[tuple[str, tuple[int, ...]]]) -> None:
    check_texts(said, TOKENIZER, "here")


@pytest.mark.parametrize(
    ("text", "ids"), [("ab", (97,)), ("ab", (97, 99)), ("a\ufffdb", (97, *E)), ("\ufffdb", (98, 97)), ("b\ufffd", E)]
)
def test_texts_that_the_ids_do_not_say_are_not(text: str, ids: tuple[int, ...]) -> None:
    with pytest.raises(RecordError, match="here: the ids of"):
        check_texts([("c", (99,)), (text, ids)], TOKENIZER, "here")


def test_a_vocabulary_is_known_by_what_its_ids_say() -> None:
    assert vocabulary_of(TOKENIZER) == vocabulary_of(ByteTokenizer())
    others = [Others(), ByteTokenizer(["<|im_end|>"])]
    assert len({vocabulary_of(one) for one in (TOKENIZER, *others)}) == 3


def test_a_segment_without_text_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    jsonl.write(file, [Trajectory("t", "t", (Segment("prompt", "", (97,)),), (Turn((CHAT.render_turn("A"),)),))])
    assert len(read_samples(file, CHAT, vocabulary=TOKENIZER.size)) == 1
