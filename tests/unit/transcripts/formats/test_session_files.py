"""Files of sessions as users have them: still being written, begun with images, several of them one after another."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foreign import FORMATS, REPAIRED, answer, fails, user, works
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError, TaskWarning
from retcon.purify.offline import Offline
from retcon.report.purification import remarks
from retcon.store.jsonl import read
from retcon.train.datasets.demonstrations import read_samples
from retcon.transcripts.detection.sample import BYTES, RECORDS
from retcon.transcripts.purifying.assignment import Assignment
from retcon.transcripts.purifying.count import Count
from retcon.transcripts.purifying.purification import Purification, Stopped

CLEAN = (user("?"), works("f()"), answer("1"))
STAYS = (user("?"), fails("f()"), answer("I cannot tell."))
Lines = list[dict[str, Any]]


def session(name: str, steps: Any = REPAIRED, own: str = "s") -> Lines:
    """A session's lines. own: its name, which all its lines have."""
    record = copy.deepcopy(FORMATS[name](steps))
    found: Lines = next(record[key] for key in ("lines", "events", "messages", "contents") if key in record)
    for line in found if own != "s" else ():
        line.update({key: own + line[key] for key in ("uuid", "parentUuid") if line.get(key)}, sessionId=own)
        if "id" in (message := line.get("message", {})):
            message["id"] = own + message["id"]
    return found


def as_lines(items: Any) -> bytes:
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items).encode()


def run(folder: Path, data: bytes, name: str = "in.jsonl", **options: Any) -> tuple[bytes, Count, Sequence[str]]:
    """What is written, counted and told of one file."""
    source, out = folder / name, folder / f"out-{name}"
    source.write_bytes(data)
    wanted = Assignment([source], out, False, [name], Offline(), audit=folder / "audit.jsonl", **options)
    purification = Purification(wanted)
    (count,) = purification(lambda *_: None, lambda: False)
    return out.read_bytes(), count, purification.bad


TORN = b'{"timestamp":"t","ty'


@pytest.mark.parametrize(
    ("name", "file"),
    [("claude_code", "in.jsonl"), ("codex", "in.jsonl"), ("adk", "in.jsonl"), ("adk", "in.json"),
     ("gemini", "in.jsonl"), ("gemini", "in.json"), ("pydantic_ai", "in.json")],
)  # fmt: skip
def test_a_transcript_may_begin_with_more_than_the_first_look_takes_in(tmp_path: Path, name: str, file: str) -> None:
    lines = session(name)
    next(line for line in lines if "16" in str(line))["x-image"] = "A" * BYTES
    out, count, _ = run(tmp_path, as_lines(lines) if file == "in.jsonl" else json.dumps(lines).encode(), file)
    assert (count.transcripts, count.calls, count.shallow) == (1, 2, 1)
    assert b"sqroot" not in out
    assert b"A" * BYTES in out


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_what_happened_before_anybody_spoke_may_be_long(tmp_path: Path, name: str) -> None:
    first, *rest = session(name)
    out, count, _ = run(tmp_path, as_lines([first] * (RECORDS + 88) + rest))
    assert (count.transcripts, count.shallow) == (1, 1)
    assert out.startswith(as_lines([first] * (RECORDS + 88)))


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_a_session_in_which_only_the_user_spoke_is_one(tmp_path: Path, name: str) -> None:
    data = as_lines(session(name, (user("?"),)))
    out, count, _ = run(tmp_path, data)
    assert (out, count.transcripts, count.without_calls) == (data, 1, 1)


@pytest.mark.parametrize(
    "name", ["messages", "openhands", "openhands_sdk", "responses", "gemini", "adk", "pydantic_ai", "bedrock", "atif",
             "smolagents", "langchain_flat", "autogen"]
)  # fmt: skip
def test_a_list_of_messages_or_steps_without_calls_is_one_transcript(tmp_path: Path, name: str) -> None:
    record = FORMATS[name]((user("?"), answer("4")))
    lists = ("messages", "steps", "history", "input", "contents", "events")
    items = next(record[key] for key in lists if key in record)
    data = json.dumps(items, indent=1).encode()
    out, count, _ = run(tmp_path, data, "in.json")
    assert (out, count.transcripts, count.without_calls) == (data, 1, 1)
    _, count, _ = run(tmp_path, json.dumps([record, record]).encode(), "list.json")
    assert count.transcripts == 2, "a list of records is none"


def test_of_a_list_of_messages_the_model_learns_its_own_words(tmp_path: Path) -> None:
    (file := tmp_path / "in.json").write_text(json.dumps([{"role": "user", "content": "A question that is asked?"},
                                                          {"role": "assistant", "content": "four"}]))  # fmt: skip
    tokenizer = ByteTokenizer()
    with pytest.warns(TaskWarning, match="none calls a tool"):
        (sample,) = read_samples(file, Chat(tokenizer, style="markdown"), vocabulary=tokenizer.size)
    learnt = tokenizer.decode([one for one, own in zip(sample.ids, sample.mask, strict=True) if own])
    assert "four" in learnt
    assert "question" not in learnt
