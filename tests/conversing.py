"""Conversations in every family of chats, over bytes and over real tokenizers."""

from __future__ import annotations

import lzma
import os
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from chat_templates import TEMPLATES, learned_chat
from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES, Family, NamedCall
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Observation, Segment, ToolSpec
from retcon.tools.schema import python_spec

DATA = Path(os.environ.get("RETCON_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tokenizers"
SEARCH = ToolSpec(
    "search",
    "Looks a word up.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the word"}, "top": {"type": "integer"}},
        "required": ["query"],
    },
)
TOOLS = (python_spec(), SEARCH)
Turned = tuple[str, Sequence[NamedCall], Sequence[str]]
"""What the model writes, the calls after it, and what they are answered or, without calls, what the user says next."""


NAMES = (*FAMILIES.names, *TEMPLATES)
"""The shipped families, and the templates that are learnt."""
STYLES = {"harmony": "chat_templates:GPT_OSS"}
"""Of families that are framed by their models' own templates alone."""


def family_of(name: str) -> Family:
    return learned_chat(name).family if name in TEMPLATES else FAMILIES.find(STYLES.get(name, name))


def controls_of(family: str) -> tuple[str, ...]:
    if family in TEMPLATES:
        return TEMPLATES[family][1]
    known = FAMILIES.find(family)
    own = vars(__import__(f"retcon.chat.families.{family}", fromlist=[family]))
    marked = [text for text in own.values() if isinstance(text, str) and text[:1] in "<[" and text[-1:] in ">]"]
    return tuple(dict.fromkeys((*known.controls, *known.ends, *known.stops, *marked)))


@cache
def bytes_of(family: str) -> ByteTokenizer:
    """Bytes, with the family's control tokens."""
    return ByteTokenizer(controls_of(family))


def chat_of(family: str, system: str | None = "Solve it.", tools: Sequence[ToolSpec] = TOOLS) -> Chat:
    if family in TEMPLATES:
        return learned_chat(family, system=system, tools=tools)
    return Chat(bytes_of(family), style=STYLES.get(family, family), system=system, tools=tools)


def ids_of(segments: Sequence[Segment]) -> list[int]:
    return [i for segment in segments for i in segment.ids or ()]


def text_of(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def conversed(chat: Chat, turns: Sequence[Turned], question: str = "What is 6 times 7?") -> list[list[Segment]]:
    """The prompt, then each turn with what follows it: as a rollout puts them together."""
    parts = [list(chat.prompt(question))]
    numbers = count()
    for text, calls, answers in turns:
        wrote = chat.render_turn(text, calls)
        last = (wrote.ids or (0,))[-1]
        if calls:
            parsed = chat.parse(wrote.ids or (), prefix=f"{next(numbers)}.0")
            seen = [Observation(call.id, answer, "ok") for call, answer in zip(parsed.calls, answers, strict=True)]
            parts.append([wrote, *chat.observations(parsed.calls, seen, last_id=last, written=parsed.text)])
        else:
            parts.append(
                [wrote, *(chat.render_messages([("user", text) for text in answers], last_id=last) if answers else ())]
            )
    return parts


@cache
def unpacked(file: Path) -> bytes:
    return lzma.decompress(file.read_bytes())


def real_folder(model: str, folder: Path) -> Path:
    """A model folder with the real tokenizer and its configuration; skips where the data is not there."""
    packed = DATA / model / "tokenizer.json.xz"
    if not packed.is_file():
        pytest.skip(f"no real tokenizer {model} in {DATA} (set RETCON_DATA)")
    (folder / "tokenizer.json").write_bytes(unpacked(packed))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (file := packed.parent / name).is_file():
            (folder / name).write_bytes(file.read_bytes())
    return folder
