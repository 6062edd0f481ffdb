"""Demonstrations as samples: Retcon's trajectories by ids, transcripts by the model's template.

The formats are those of `retcon purify`, so that training reads its output.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TypeGuard, TypeVar

from retcon.chat.chat import Chat, render
from retcon.chat.template import PROBED, RenderError
from retcon.chat.types import REASONING, TextMessage, Tokenizer
from retcon.core.codec import from_dict
from retcon.core.errors import MissingIds, RecordError, TaskWarning, as_record_error, nearest
from retcon.core.texts import counted
from retcon.core.types import ANYTHING, TRAINED, Sample, Segment, ToolSpec, Trajectory, Turn, to_sample
from retcon.store.records import Record, expand, open_source
from retcon.transcripts.detector import Detector, TornLine, sample_records
from retcon.transcripts.formats.messages import pieces_of
from retcon.transcripts.items import (
    KINDS,
    QUESTIONS,
    ROLES,
    TEXTS,
    context_of,
    decode,
    find_items,
    is_unlearnt,
    speaker_of,
    system_of,
    text_of,
)
from retcon.transcripts.pieces import Piece, thought_in
from retcon.transcripts.types import Json, Speakers

_TEXT = ("content", "value")
_BESIDE_CONTENT = ("tool_calls", "function_call", "refusal", *REASONING)
"""Content of a message besides text."""
_NAMES = {"role", "from", "id", "tool_call_id", "name"}
"""Keys that only identify a tool's output."""
_BETWEEN = re.compile(r"reasoning|item_reference|compaction|mcp_\w+|\w+_(?:call|output)")
"""Types of the Responses API's items between messages."""
_UNSHOWN = frozenset(
    {"image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video", "video_url", "input_video"}
    | {"file", "input_file", "document"}
)
"""Types of parts without text."""
_USUAL = ("assistant", "user", "system", "tool", "human")
"""Roles that a similar spelling means; others are users' own names."""


def words_of(item: Mapping[str, Json]) -> str:
    """Return the text of a message in OpenAI's or ShareGPT's shape."""
    return text_of(_content(item))


def pieces_in(item: Mapping[str, Json]) -> list[Piece]:
    """Return the text and thoughts of a model's message without calls."""
    own: dict[str, Json] = {**item, "role": "assistant", "content": _content(item)}
    return [piece for piece in pieces_of(own, 0, after_call=False) if piece.kind == "assistant"]


def _content(item: Mapping[str, Json]) -> Json:
    return item.get("content", item.get("value"))


def check_readable(record: Json) -> None:
    """Check that all messages can be read. Raises RecordError for a message without text, calls or reasoning, which
    would be learnt as silence, an image or the like, and a misspelt role, which would count as the user's."""
    found = find_items(record)
    prompt = record.get("prompt") if isinstance(record, dict) else None
    for items in ([] if found is None else found[1], prompt if isinstance(prompt, list) else []):
        for number, item in enumerate(items, 1):
            if isinstance(item, dict) and not _is_between(item):
                _check_message(item, f"message {number}")


def _is_between(item: Mapping[str, Json]) -> bool:
    """Return whether an item is not a message, but one of the Responses API's between messages."""
    role, kind = item.get("role", item.get("from")), item.get("type")
    return role is None and isinstance(kind, str) and _BETWEEN.fullmatch(kind) is not None


def _check_message(item: Mapping[str, Json], which: str) -> None:
    role = item.get("role", item.get("from"))
    if isinstance(role, str) and (meant := _misspelt(role)):
        raise RecordError(f"{which}: the role '{role}' is not known (did you mean '{meant}'?)")
    text = _content(item)
    if (kind := next(_unshown(text), None)) is not None:
        raise RecordError(f"{which} ({role}) has a part of type '{kind}': images and the like are not read")
    # A tool's output may be empty, which some records leave out.
    silent = KINDS.get(role) == "result" and (item.keys() <= _NAMES or any(key in item for key in _TEXT))
    unsaid = text is None and not silent
    if not any(item.get(key) for key in _BESIDE_CONTENT) and (unsaid or not isinstance(text, str | list | dict | None)):
        hint = next((hint for key in item if key not in _TEXT and (hint := nearest(key, _TEXT))), "")
        has = next(
            (f"its {key} is null" for key in _TEXT if item.get(key, "") is None), f"it has {', '.join(item)}{hint}"
        )
        raise RecordError(f"{which} ({role}) has no text, which is read from {' or '.join(_TEXT)}: {has}")


def _unshown(content: Json) -> Iterator[str]:
    """Yield the types of parts without text, those within a tool's result included."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str):
            if kind in _UNSHOWN:
                yield kind
            elif kind == "tool_result":
                yield from _unshown(part.get("content"))


def _misspelt(role: str) -> str:
    """Return the usual role that a misspelt one means; "" for a known role, or a user's name (`user_1`, `coder`)."""
    if role in ROLES or role.lower().startswith(_USUAL):
        return ""
    return next(iter(get_close_matches(role[:40].lower(), _USUAL, 1, 0.85)), "")


ANSWERS = ("completion", "response", "output", "generation", "solution", "answer")
"""Fields that hold an answer, by their names."""
_BESIDE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "question": (("context",), ()), "instruction": ((), ("input", "context")),
}  # fmt: skip
"""Further fields of a question, by its field: those before it, and after."""
_ROLES = "(system|user|assistant)\n"
_TURNS = (re.compile(rf"<\|im_start\|>{_ROLES}"), re.compile(rf"^{_ROLES}", re.MULTILINE))
"""Begin of turns in a prompt in Qwen's template (slime), and without its markers (verl)."""


def tools_of(record: Json) -> tuple[ToolSpec, ...] | None:
    """Return the record's tools, None if it lists none. Raises RecordError for other values."""
    listed = record.get("tools") if isinstance(record, dict) else None
    try:
        listed = json.loads(listed) if isinstance(listed, str) and listed else listed
    except ValueError as error:
        raise RecordError(f"'tools' is text that is not JSON: {error}") from None
    return None if listed in (None, "") else tuple(map(_tool, listed if isinstance(listed, list) else [listed]))


def _tool(recorded: Json) -> ToolSpec:
    """Read a tool as OpenAI's APIs, Anthropic's and MCP list it, or its name alone."""
    outer = recorded if isinstance(recorded, dict) else {"name": recorded}
    inner = outer.get("function", outer)
    if not isinstance(inner, dict) or not isinstance(name := inner.get("name", inner.get("type")), str):
        wanted = '{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}'
        raise RecordError(f"'tools' has {json.dumps(recorded):.80}, expected a tool: {wanted}")
    schema = next((inner[key] for key in ("parameters", "input_schema", "inputSchema") if inner.get(key)), ANYTHING)
    own = outer if inner is not outer else None
    return ToolSpec(name, str(inner.get("description") or ""), schema if isinstance(schema, dict) else ANYTHING, own)


def messages_before(record: Json, speakers: Speakers) -> list[TextMessage]:
    """Return the messages before the model's first turn, with their roles."""
    found = find_items(record)
    listed = list(speakers.before)
    texts = [text for _, text in listed]
    context = context_of(record)
    in_items = found is not None and found[0] != ("completion",) and context in map(words_of, found[1])
    before = [] if in_items else asked_of(record)
    if context and texts[:1] == [context] and (not in_items or context in texts[1:]):
        listed = listed[1:]  # in `before`, or repeated by the list
    elif listed:
        before = []  # the list is the whole prompt
    before += listed
    if speakers.system and not any(speakers.system in text for _, text in before):
        return [("system", speakers.system), *before]
    system = system_of(record)
    if system and not any(kind == "system" or system in text for kind, text in before):
        before.insert(0, ("system", system))
    return before


def asked_of(record: Json) -> list[TextMessage]:
    """Return the question that `context_of` finds as messages, with all its fields."""
    if not isinstance(record, dict):
        return []
    if isinstance(prompt := record.get("prompt"), list):
        return [(speaker_of(message), words_of(message)) for message in prompt if isinstance(message, dict)]
    question = context_of(record)
    name = next((name for name in QUESTIONS if question and record.get(name) == question), "")
    first, after = _BESIDE.get(name, ((), ()))
    parts = [*(record.get(other) for other in first), question, *(record.get(other) for other in after)]
    asked = "\n\n".join(part for part in parts if _is_text(part) and (part is question or part not in question))
    return [*_history_of(record), *(_turns_in(asked) or [("user", asked)] if asked else [])]


def _turns_in(prompt: str) -> list[TextMessage]:
    """Split a rollout dump's prompt, which opens the model's turn, into messages; empty for another text."""
    for turns in _TURNS:
        before, *parts = turns.split(prompt)
        if before or parts[-2:-1] != ["assistant"] or parts[-1].strip() not in ("", "<think>"):
            continue
        texts = (text.removesuffix("\n").removesuffix("<|im_end|>") for text in parts[1:-2:2])
        return list(zip(parts[:-2:2], texts, strict=True))
    return []


def check_has_question(record: Json) -> None:
    """Check that a question comes before an answer. Raises RecordError if it is in an unknown field. A field of a
    neutral name (`text`, `content`, `code`) needs no question."""
    if not isinstance(record, dict):
        return
    found = find_items(record)
    name = found[0][-1] if found and found[0] else next((name for name in ANSWERS if name in record), "")
    if name in ANSWERS:
        raise RecordError(
            f"no question before '{name}': it is read from {', '.join(QUESTIONS)}, and the record has "
            f"{', '.join(list(record)[:8])}; name it `prompt`, or give text without a question as `text`"
        )


class UnpairedCall(RecordError):
    """A call without its result, or a result without its call."""


def check_answered(turns: Sequence[Turn], others: Iterable[TextMessage]) -> None:
    """Check that earlier calls have results, and results calls (HalfCall)."""
    for number, turn in enumerate(turns[:-1], 1):
        seen = {observation.call_id for observation in turn.observations}
        if (call := next((call for call in turn.calls if call.id not in seen), None)) is not None:
            fault = (
                f"the call of '{call.name}' in the model's turn {number} has no result, and the conversation goes on"
            )
            raise UnpairedCall(f"{fault}: add the tool's message, or take the call out")
    if (text := next((text for role, text in others if role == "tool"), None)) is not None:
        raise UnpairedCall(
            f"a tool's result answers no call, found {text!r:.60}: add the call before it, or take it out"
        )


def _history_of(record: Mapping[str, Json]) -> list[TextMessage]:
    """Return Alpaca's earlier turns, pairs of question and answer, as messages."""
    history = record.get("history")
    pairs = history if isinstance(history, list) else []
    if not all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in pairs):
        return []
    return [(role, str(text)) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]


def _is_text(value: Json) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


UNREADABLE = "\ufffd"
"""Stands for bytes of an incomplete character; one that is cut in two has it in each part."""
EncodedText = tuple[str, Sequence[int]]
"""A text with its ids, (T,)."""


def vocabulary_of(tokenizer: Tokenizer) -> str:
    """Hash a vocabulary by the text of every id, whatever its file."""
    return hashlib.sha256(tokenizer.decode(range(tokenizer.size)).encode("utf-8", "replace")).hexdigest()[:16]


def check_ids(ids: Sequence[int], vocabulary: int, where: str) -> None:
    """Check that the model has all of these ids. Raises RecordError."""
    least, most = min(ids, default=0), max(ids, default=0)
    if least < 0 or most >= vocabulary:
        wrong = least if least < 0 else most
        raise RecordError(f"{where}: id {wrong}, and the model has {vocabulary}, from 0 on: another model's")


def check_texts(encoded: Sequence[EncodedText], tokenizer: Tokenizer, where: str) -> None:
    """Check that ids decode to the texts beside them. Raises RecordError.

    Space, case, control tokens, a character's form and the borders of texts do not count: tokenizers may change them,
    and others may have written the texts.
    """
    size = tokenizer.size
    encoded = [(text, [i for i in ids if 0 <= i < size]) for text, ids in encoded]
    if all(tokenizer.decode(ids) == text for text, ids in encoded):
        return
    known = [(text, ids) for text, ids in encoded if text]
    text, read = "".join(text for text, _ in known), tokenizer.decode([i for _, ids in known for i in ids])
    for controls in ((), tokenizer.controls):  # some models have thousands, which are seldom left out
        if _matches(_plain(read, controls), _plain(text, controls).split(UNREADABLE)):
            return
    first = next(((t, decoded) for t, ids in known if (decoded := tokenizer.decode(ids)) != t), (text, read))
    raise RecordError(
        f"{where}: the ids of {_shorten(first[0])} are {_shorten(first[1])} to this model: they are another model's; "
        "write the file anew with this one, or give the conversations as messages"
    )


def _plain(text: str, controls: Iterable[str]) -> str:
    """Reduce a text to what any tokenizer keeps."""
    for control in controls:
        text = text.replace(control, "")
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _matches(read: str, parts: Sequence[str]) -> bool:
    """Return whether `read` is these parts in their order, with anything in between."""
    first, *others = parts
    if not others:
        return read == first
    if not read.startswith(first):
        return False
    at = len(first)
    for part in others[:-1]:
        found = read.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return read[at:].endswith(others[-1])


def _shorten(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else f"{text[:most]}…")


T = TypeVar("T")
OURS = "retcon"
_NAME = re.compile(r"[\w.-]+")
SHOWN = 3
"""Most places of left-out demonstrations in a message."""


def read_samples(file: Path, chat: Chat, *, vocabulary: int, max_tokens: int | None = None) -> list[Sample]:
    """Read samples from a file or folder of trajectories or transcripts.

    Only the model's text is in the loss mask. vocabulary: number of the model's ids. max_tokens: the model's positions,
    None for any number; longer samples are left out, and so are those with an empty loss mask, which a TaskWarning
    counts. Another one reports that no demonstration calls a tool. Raises RecordError, which begins with the file and
    line, for a record that is neither, that the chat's template refuses, has unreadable messages (`check_readable`),
    ids of another model, or text in place of ids; and if no sample is left.
    """
    samples: list[Sample] = []
    idle: list[str] = []
    unshown: dict[str, str] = {}
    shows = PROBED.name in _text(chat.with_tools([PROBED]).render_prompt([("user", "x")]))
    calling = turns = 0
    for record, trajectory in read_rendered(file, chat):
        try:
            sample = to_sample(trajectory, scored=False)
        except MissingIds as error:
            raise RecordError(f"{record.where}: {error}: an audit? Give what `retcon purify` wrote to -o") from error
        check_ids(sample.ids, vocabulary, record.where)
        check_texts([(s.text, s.ids or ()) for s in trajectory.segments], chat.tokenizer, record.where)
        if sample.mask[:1] == (1,):  # nothing predicts the first id of all
            sample = replace(sample, mask=(0, *sample.mask[1:]))
        called = {call.name for turn in trajectory.turns for call in turn.calls} if shows else set[str]()
        if called and (missing := called - set(_NAME.findall(_text(trajectory.prompt)))):
            unshown.update(dict.fromkeys(missing - unshown.keys(), record.where))
        if any(sample.mask):
            samples.append(sample)
            calling += any(turn.calls and turn.generated for turn in trajectory.turns)
            turns += len(trajectory.turns)
        else:
            idle.append(record.where.removeprefix(f"{file}, "))
    if not samples:
        raise RecordError(f"{file} holds no trajectory to learn from")
    if idle:
        some = "; ".join((*idle[:SHOWN], *["…"] * (len(idle) > SHOWN)))
        text = f"{file}: {len(idle)} of {len(idle) + len(samples)} demonstrations have no words of the model's to learn"
        warnings.warn(f"{text}, and are left out ({some})", TaskWarning, stacklevel=2)
    if unshown:
        text = f"calls are learnt of tools that the prompt does not show: {', '.join(list(unshown)[:SHOWN])}"
        first = next(iter(unshown.values()))
        warnings.warn(f"{file}: {text} (first at {first}): give records their `tools`", TaskWarning, stacklevel=2)
    if not calling:
        text = f"{file}: of {counted(len(samples), 'demonstration')} none calls a tool: the model learns to do without"
        if turns == len(samples):
            text += (
                "; if these are problems with their answers, `retcon demos` writes demonstrations of how to solve them"
            )
        warnings.warn(text, TaskWarning, stacklevel=2)
    return drop_too_long(samples, lambda sample: len(sample.ids), max_tokens, file, "demonstrations")


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def drop_too_long(found: list[T], length: Callable[[T], int], most: int | None, file: Path, what: str) -> list[T]:
    """Drop items longer than `most` positions (None: any). what: their name, in messages.

    Warns (TaskWarning) of dropped items, raises RecordError if none is left.
    """
    if most is None:
        return found
    long = [length(one) for one in found if length(one) > most]
    if not long:
        return found
    fault = f"{file}: {len(long)} of {len(found)} {what} are longer than the model's {most} positions"
    if len(long) == len(found):
        raise RecordError(f"{fault}: none is left to learn from")
    warnings.warn(f"{fault} (the longest has {max(long)}), and are left out", TaskWarning, stacklevel=3)
    return [one for one in found if length(one) <= most]


def files_of(demonstrations: Path) -> list[Path]:
    """Return the file, or the transcripts below a folder, by name. Raises RecordError for a folder without any."""
    return [path for path, _ in expand([str(demonstrations)])] if demonstrations.is_dir() else [demonstrations]


def read_rendered(file: Path, chat: Chat) -> Iterator[tuple[Record, Trajectory]]:
    """Yield records and trajectories of a file or folder: Retcon's unchanged, others in the chat's template."""
    for one in files_of(file):
        yield from _rendered_of(one, chat)


def _rendered_of(file: Path, chat: Chat) -> Iterator[tuple[Record, Trajectory]]:
    source, detector, known = sample_records(open_source(file), "auto")
    half: list[str] = []
    try:
        for record in source.records:
            try:
                value = known[record.number] if record.number in known else decode(record)
                yield from ((record, one) for one in render_record(value, detector, chat, record.where))
            except UnpairedCall as error:
                half.append(str(as_record_error(error, record.where)))
            except (RecordError, RenderError) as error:
                raise as_record_error(error, record.where) from error
    except TornLine as torn:
        warnings.warn(str(torn), TaskWarning, stacklevel=2)
    if half:
        warnings.warn(
            f"left out: {counted(len(half), 'record')} with half a call: {half[0]}", TaskWarning, stacklevel=2
        )


def render_record(value: Json, detector: Detector, chat: Chat, where: str) -> list[Trajectory]:
    """Render one record's trajectories; unlearnt text of the model is `prompt`.

    Raises RecordError for a record that is not a transcript, has an answer without a question, or unreadable messages.
    """
    found = detector.format_of(value)
    if found is not None and found.name == OURS:
        return [from_dict(value, where)]
    check_readable(value)
    if found is not None:
        reading = found.read(value, where)
        read = list(zip(reading.trajectories, reading.speakers, strict=True))
    else:
        read = _without_calls(value, where)
    return [_rendered(value, trajectory, speakers, chat) for trajectory, speakers in read]


def _rendered(record: Json, trajectory: Trajectory, speakers: Speakers, chat: Chat) -> Trajectory:
    before = messages_before(record, speakers)
    if trajectory.turns:
        if not before:
            check_has_question(record)
        check_answered(trajectory.turns, chain(before, *speakers.after[:-1]))
    tools = tools_of(record)
    chat = chat if tools is None else chat.with_tools(tools)
    made = in_template(trajectory, chat, before, speakers.after, speakers.thoughts)
    turns = [turn if own else _mask_turn(turn) for turn, own in zip(made.turns, speakers.learnt, strict=True)]
    return _cut_unlearnt(replace(made, turns=tuple(turns)))


def in_template(
    trajectory: Trajectory, chat: Chat, before: Sequence[TextMessage],
    after: Sequence[Sequence[TextMessage]] | None = None, thoughts: Sequence[str] = (),
) -> Trajectory:  # fmt: skip
    """Render a trajectory; keep its observations where a turn's calls are unchanged."""
    made = render(trajectory, chat, before, after, thoughts)
    turns = [_with_observations(turn, was) for turn, was in zip(made.turns, trajectory.turns, strict=True)]
    return replace(made, turns=tuple(turns))


def _with_observations(turn: Turn, was: Turn) -> Turn:
    if len(turn.calls) != len(was.observations):
        return turn
    pairs = zip(turn.calls, was.observations, strict=True)
    return replace(turn, observations=tuple(replace(o, call_id=call.id) for call, o in pairs))


def _mask_turn(turn: Turn) -> Turn:
    """Take the turn out of the loss mask: it is part of the history alone."""
    segments = [replace(one, kind="prompt") if one.kind in TRAINED else one for one in turn.segments]
    return replace(turn, segments=tuple(segments))


def _cut_unlearnt(trajectory: Trajectory) -> Trajectory:
    """Cut the trajectory after the last learnt text."""
    count = max((n for n, turn in enumerate(trajectory.turns, 1) if turn.generated), default=0)
    if not count:
        return trajectory
    *others, last = trajectory.turns[:count]
    return replace(trajectory, turns=(*others, replace(last, segments=last.generated)))


def _without_calls(record: Json, where: str) -> list[tuple[Trajectory, Speakers]]:
    """Read a conversation, or texts, without tool calls."""
    context = context_of(record)
    asked: list[TextMessage] = [("user", context)] if context else []
    if (found := find_items(record)) is not None:
        before = asked if found[0] == ("completion",) else []
        turns: list[Turn] = []
        after: list[list[TextMessage]] = []
        thoughts: list[str] = []
        for item in found[1]:
            role = speaker_of(item)
            if role == "assistant":
                pieces = pieces_in(item)
                turns.append(Turn((Segment("sampled", "".join(piece.text for piece in pieces)),)))
                after.append([])
                thoughts.append(thought_in(pieces))
            else:
                (after[-1] if after else before).append((role, words_of(item)))
        learnt = [not is_unlearnt(item) for item in found[1] if speaker_of(item) == "assistant"]
        return [(Trajectory(where, where, (), tuple(turns)), Speakers(before, after, learnt, thoughts=thoughts))]
    assert isinstance(record, dict)
    # A record whose list of messages is empty has none of these fields.
    value: Json = next((record[name] for name in TEXTS if name in record), [])
    texts = value if isinstance(value, list) else [value]
    speakers = Speakers(asked, [[]], [True])
    return [(Trajectory(where, where, (), (Turn((Segment("sampled", str(text)),)),)), speakers) for text in texts]
