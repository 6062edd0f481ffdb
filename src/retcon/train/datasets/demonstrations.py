"""Demonstrations to learn from: our own trajectories, by their ids; anyone's transcripts, through the model's template.

The formats are those of `retcon purify`, so that what it wrote can be learnt from.
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

from retcon.chat.chat import Chat
from retcon.chat.render import render
from retcon.chat.template import PROBED, RenderError
from retcon.chat.types import REASONING, TextMessage, Tokenizer
from retcon.core.codec import from_dict
from retcon.core.errors import MissingIds, RecordError, TaskWarning, as_record_error, nearest
from retcon.core.texts import counted
from retcon.core.types import ANYTHING, TRAINED, Sample, Segment, ToolSpec, Trajectory, Turn, to_sample
from retcon.store.records import Record, open_source
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
from retcon.transcripts.purification import expand
from retcon.transcripts.types import Json, Speakers

_TEXT = ("content", "value")
_BESIDE_CONTENT = ("tool_calls", "function_call", "refusal", *REASONING)
"""What a message may say without a text."""
_NAMES = {"role", "from", "id", "tool_call_id", "name"}
"""What says of a tool's output only which it is."""
_BETWEEN = re.compile(r"reasoning|item_reference|compaction|mcp_\w+|\w+_(?:call|output)")
"""Types of the Responses API's items that are no messages."""
_UNSHOWN = frozenset(
    {"image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video", "video_url", "input_video"}
    | {"file", "input_file", "document"}
)
"""Types of parts that have no text to be learnt from."""
_USUAL = ("assistant", "user", "system", "tool", "human")
"""Roles that are meant where one is nearly written so; others are names of people's own."""


def words_of(item: Mapping[str, Json]) -> str:
    """The text of a message, of OpenAI's shape or ShareGPT's."""
    return text_of(_content(item))


def pieces_in(item: Mapping[str, Json]) -> list[Piece]:
    """What the model says in a message of its own that has no calls, with what it thinks."""
    own: dict[str, Json] = {**item, "role": "assistant", "content": _content(item)}
    return [piece for piece in pieces_of(own, 0, after_call=False) if piece.kind == "assistant"]


def _content(item: Mapping[str, Json]) -> Json:
    return item.get("content", item.get("value"))


def refuse_unread(record: Json) -> None:
    """Raises RecordError for a message of the record that has neither text nor calls nor reasoning where these are
    looked for, for an image or the like, and for a role that is a misspelt one: the first would be learnt as silence,
    the second as what nobody showed, the third as the user's, as roles of other names are."""
    found = find_items(record)
    prompt = record.get("prompt") if isinstance(record, dict) else None
    for items in ([] if found is None else found[1], prompt if isinstance(prompt, list) else []):
        for number, item in enumerate(items, 1):
            if isinstance(item, dict) and not _is_between(item):
                _refuse_unread(item, f"message {number}")


def _is_between(item: Mapping[str, Json]) -> bool:
    """Whether it is no message, but an item that the Responses API has between messages."""
    role, kind = item.get("role", item.get("from")), item.get("type")
    return role is None and isinstance(kind, str) and _BETWEEN.fullmatch(kind) is not None


def _refuse_unread(item: Mapping[str, Json], which: str) -> None:
    role = item.get("role", item.get("from"))
    if isinstance(role, str) and (meant := _misspelt(role)):
        raise RecordError(f"{which}: the role '{role}' is not known (did you mean '{meant}'?)")
    text = _content(item)
    if (kind := next(_unshown(text), None)) is not None:
        raise RecordError(f"{which} ({role}) has a part of type '{kind}': images and the like are not read")
    # A tool may have put out nothing, which some leave out.
    silent = KINDS.get(role) == "result" and (item.keys() <= _NAMES or any(key in item for key in _TEXT))
    unsaid = text is None and not silent
    if not any(item.get(key) for key in _BESIDE_CONTENT) and (unsaid or not isinstance(text, str | list | dict | None)):
        hint = next((hint for key in item if key not in _TEXT and (hint := nearest(key, _TEXT))), "")
        has = next(
            (f"its {key} is null" for key in _TEXT if item.get(key, "") is None), f"it has {', '.join(item)}{hint}"
        )
        raise RecordError(f"{which} ({role}) has no text, which is read from {' or '.join(_TEXT)}: {has}")


def _unshown(content: Json) -> Iterator[str]:
    """Types of the parts that the model cannot be shown, those within a tool's result among them."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str):
            if kind in _UNSHOWN:
                yield kind
            elif kind == "tool_result":
                yield from _unshown(part.get("content"))


def _misspelt(role: str) -> str:
    """The usual role that is meant; none of what is known, or a name of people's own (`user_1`, `coder`)."""
    if role in ROLES or role.lower().startswith(_USUAL):
        return ""
    return next(iter(get_close_matches(role[:40].lower(), _USUAL, 1, 0.85)), "")


ANSWERS = ("completion", "response", "output", "generation", "solution", "answer")
"""Fields of which the names say that what is in them answers something."""
_BESIDE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "question": (("context",), ()), "instruction": ((), ("input", "context")),
}  # fmt: skip
"""What else is asked, by the field of the question: the fields that come before it, and after."""
_ROLES = "(system|user|assistant)\n"
_TURNS = (re.compile(rf"<\|im_start\|>{_ROLES}"), re.compile(rf"^{_ROLES}", re.MULTILINE))
"""How turns begin in a prompt in Qwen's template (slime), and where a decoder left out the markers (verl)."""


def tools_of(record: Json) -> tuple[ToolSpec, ...] | None:
    """The tools that the model was shown, None where the record does not say. Raises RecordError for other values."""
    listed = record.get("tools") if isinstance(record, dict) else None
    try:
        listed = json.loads(listed) if isinstance(listed, str) and listed else listed
    except ValueError as error:
        raise RecordError(f"'tools' is text that is not JSON: {error}") from None
    return None if listed in (None, "") else tuple(map(_tool, listed if isinstance(listed, list) else [listed]))


def _tool(recorded: Json) -> ToolSpec:
    """A tool as OpenAI's APIs, Anthropic's and MCP list it, or its name alone."""
    outer = recorded if isinstance(recorded, dict) else {"name": recorded}
    inner = outer.get("function", outer)
    if not isinstance(inner, dict) or not isinstance(name := inner.get("name", inner.get("type")), str):
        wanted = '{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}'
        raise RecordError(f"'tools' has {json.dumps(recorded):.80}, where a tool belongs: {wanted}")
    schema = next((inner[key] for key in ("parameters", "input_schema", "inputSchema") if inner.get(key)), ANYTHING)
    own = outer if inner is not outer else None
    return ToolSpec(name, str(inner.get("description") or ""), schema if isinstance(schema, dict) else ANYTHING, own)


def told_before(record: Json, speakers: Speakers) -> list[TextMessage]:
    """What the model was told before its first turn, with the roles that the record knows."""
    found = find_items(record)
    told = list(speakers.before)
    texts = [text for _, text in told]
    context = context_of(record)
    in_items = found is not None and found[0] != ("completion",) and context in map(words_of, found[1])
    before = [] if in_items else asked_of(record)
    if context and texts[:1] == [context] and (not in_items or context in texts[1:]):
        told = told[1:]  # in `before`, or repeated by the list
    elif told:
        before = []  # the list is all that was told
    before += told
    if speakers.system and not any(speakers.system in text for _, text in before):
        return [("system", speakers.system), *before]
    system = system_of(record)
    if system and not any(kind == "system" or system in text for kind, text in before):
        before.insert(0, ("system", system))
    return before


def asked_of(record: Json) -> list[TextMessage]:
    """What `context_of` finds, as messages, with all that belongs to the question."""
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
    """The messages of a prompt that opens the model's turn, as rollout dumps have it; none where it is another text."""
    for turns in _TURNS:
        before, *parts = turns.split(prompt)
        if before or parts[-2:-1] != ["assistant"] or parts[-1].strip() not in ("", "<think>"):
            continue
        texts = (text.removesuffix("\n").removesuffix("<|im_end|>") for text in parts[1:-2:2])
        return list(zip(parts[:-2:2], texts, strict=True))
    return []


def refuse_unasked(record: Json) -> None:
    """Raises RecordError where nothing comes before an answer, as the question is in a field of an unknown name. Text
    in a field that does not say what it is (`text`, `content`, `code`) may be meant so."""
    if not isinstance(record, dict):
        return
    found = find_items(record)
    name = found[0][-1] if found and found[0] else next((name for name in ANSWERS if name in record), "")
    if name in ANSWERS:
        raise RecordError(
            f"nothing is asked before '{name}': the question is looked for in {', '.join(QUESTIONS)}, and the record "
            f"has {', '.join(list(record)[:8])}; name it `prompt`, or give text that nobody asked for as `text`"
        )


class HalfCall(RecordError):
    """A call lacks its result, or a result its call."""


def refuse_unanswered(turns: Sequence[Turn], told: Iterable[TextMessage]) -> None:
    """Raises HalfCall for a call without a result before the last turn, and for a result without a call."""
    for number, turn in enumerate(turns[:-1], 1):
        seen = {observation.call_id for observation in turn.observations}
        if (call := next((call for call in turn.calls if call.id not in seen), None)) is not None:
            said = f"the call of '{call.name}' in the model's turn {number} has no result, and the conversation goes on"
            raise HalfCall(f"{said}: add the tool's message, or take the call out")
    if (text := next((text for role, text in told if role == "tool"), None)) is not None:
        raise HalfCall(f"a tool's result answers no call, found {text!r:.60}: add the call before it, or take it out")


def _history_of(record: Mapping[str, Json]) -> list[TextMessage]:
    """Alpaca's earlier turns, pairs of what was asked and what was answered."""
    history = record.get("history")
    pairs = history if isinstance(history, list) else []
    if not all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in pairs):
        return []
    return [(role, str(text)) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]


def _is_text(value: Json) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


UNREADABLE = "\ufffd"
"""What stands for bytes that are no whole character: of one that is cut in two, each part says so."""
Said = tuple[str, Sequence[int]]
"""A stretch of text with its ids, (T,)."""


def vocabulary_of(tokenizer: Tokenizer) -> str:
    """Tells apart vocabularies: the same where every id says the same, whatever file the tokenizer was read from."""
    return hashlib.sha256(tokenizer.decode(range(tokenizer.size)).encode("utf-8", "replace")).hexdigest()[:16]


def refuse_other_vocabulary(ids: Sequence[int], vocabulary: int, where: str) -> None:
    """Raises RecordError where the model has not all of these ids."""
    least, most = min(ids, default=0), max(ids, default=0)
    if least < 0 or most >= vocabulary:
        wrong = least if least < 0 else most
        raise RecordError(f"{where}: id {wrong}, and the model has {vocabulary}, from 0 on: another model's")


def refuse_other_texts(said: Sequence[Said], tokenizer: Tokenizer, where: str) -> None:
    """Raises RecordError where ids do not say the text beside them.

    Space, case, control tokens and a character's form do not count, nor where the stretches meet: tokenizers may change
    them, and others may have written the texts.
    """
    size = tokenizer.size
    said = [(text, [i for i in ids if 0 <= i < size]) for text, ids in said]
    if all(tokenizer.decode(ids) == text for text, ids in said):
        return
    known = [(text, ids) for text, ids in said if text]
    text, read = "".join(text for text, _ in known), tokenizer.decode([i for _, ids in known for i in ids])
    for controls in ((), tokenizer.controls):  # some models have thousands, which are seldom left out
        if _says(_plain(read, controls), _plain(text, controls).split(UNREADABLE)):
            return
    first = next(((t, decoded) for t, ids in known if (decoded := tokenizer.decode(ids)) != t), (text, read))
    raise RecordError(
        f"{where}: the ids of {_begins(first[0])} are {_begins(first[1])} to this model: another model's, whose tokens "
        "are others; write the file anew with this one, or give the conversations as messages"
    )


def _plain(text: str, controls: Iterable[str]) -> str:
    """What of a text any tokenizer keeps."""
    for control in controls:
        text = text.replace(control, "")
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _says(read: str, parts: Sequence[str]) -> bool:
    """Whether `read` is these parts in their order, with anything in between."""
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


def _begins(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else f"{text[:most]}…")


T = TypeVar("T")
OURS = "retcon"
_NAME = re.compile(r"[\w.-]+")
SHOWN = 3
"""Of the places of demonstrations that are left out."""


def read_samples(file: Path, chat: Chat, *, vocabulary: int, max_tokens: int | None = None) -> list[Sample]:
    """The samples of a file, or folder, of trajectories or transcripts. What the model wrote is learnt, nothing else.

    vocabulary: ids that the model has. max_tokens: positions that it has, None for any number; longer samples are left
    out, and so are those with nothing to learn, which a TaskWarning counts. Another one says that no demonstration
    calls a tool. Raises RecordError, which begins with the file and line, at a record that is neither, that the chat's
    template refuses, has messages that would not be read (`refuse_unread`) or ids of another model, or holds text where
    it should have ids; and where nothing is left to learn.
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
        refuse_other_vocabulary(sample.ids, vocabulary, record.where)
        refuse_other_texts([(s.text, s.ids or ()) for s in trajectory.segments], chat.tokenizer, record.where)
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
        said = f"{file}: {len(idle)} of {len(idle) + len(samples)} demonstrations have no words of the model's to learn"
        warnings.warn(f"{said}, and are left out ({some})", TaskWarning, stacklevel=2)
    if unshown:
        said = f"calls are learnt of tools that the prompt does not show: {', '.join(list(unshown)[:SHOWN])}"
        first = next(iter(unshown.values()))
        warnings.warn(f"{file}: {said} (first at {first}): give records their `tools`", TaskWarning, stacklevel=2)
    if not calling:
        said = f"{file}: of {counted(len(samples), 'demonstration')} none calls a tool: the model learns to do without"
        if turns == len(samples):
            said += (
                "; if these are problems with their answers, `retcon demos` writes demonstrations of how to solve them"
            )
        warnings.warn(said, TaskWarning, stacklevel=2)
    return short_enough(samples, lambda sample: len(sample.ids), max_tokens, file, "demonstrations")


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def short_enough(found: list[T], length: Callable[[T], int], most: int | None, file: Path, what: str) -> list[T]:
    """Those that a model with `most` positions has room for, None for any number. what: names them, in messages.

    Warns (TaskWarning) where some are left out, raises RecordError where that is all of them.
    """
    if most is None:
        return found
    long = [length(one) for one in found if length(one) > most]
    if not long:
        return found
    said = f"{file}: {len(long)} of {len(found)} {what} are longer than the model's {most} positions"
    if len(long) == len(found):
        raise RecordError(f"{said}: none is left to learn from")
    warnings.warn(f"{said} (the longest has {max(long)}), and are left out", TaskWarning, stacklevel=3)
    return [one for one in found if length(one) <= most]


def files_of(demonstrations: Path) -> list[Path]:
    """The file itself; of a folder, as `retcon purify` writes and reads it, the transcripts in it and below, by their
    names. Raises RecordError where a folder has none."""
    return [path for path, _ in expand([str(demonstrations)])] if demonstrations.is_dir() else [demonstrations]


def read_rendered(file: Path, chat: Chat) -> Iterator[tuple[Record, Trajectory]]:
    """The trajectories of a file or folder, with their records: ours as they are, others in the chat's template."""
    for one in files_of(file):
        yield from _rendered_of(one, chat)


def _rendered_of(file: Path, chat: Chat) -> Iterator[tuple[Record, Trajectory]]:
    source, detector, known = sample_records(open_source(file), "auto")
    half: list[str] = []
    try:
        for record in source.records:
            try:
                value = known[record.number] if record.number in known else decode(record)
                yield from ((record, one) for one in rendered(value, detector, chat, record.where))
            except HalfCall as error:
                half.append(str(as_record_error(error, record.where)))
            except (RecordError, RenderError) as error:
                raise as_record_error(error, record.where) from error
    except TornLine as torn:
        warnings.warn(str(torn), TaskWarning, stacklevel=2)
    if half:
        warnings.warn(
            f"left out: {counted(len(half), 'record')} with half a call: {half[0]}", TaskWarning, stacklevel=2
        )


def rendered(value: Json, detector: Detector, chat: Chat, where: str) -> list[Trajectory]:
    """The trajectories of one record; what is not to be learnt of what the model wrote is of kind `prompt`.

    Raises RecordError where the record is no transcript, answers what it does not ask, or has messages that would not
    be read.
    """
    found = detector.format_of(value)
    if found is not None and found.name == OURS:
        return [from_dict(value, where)]
    refuse_unread(value)
    if found is not None:
        reading = found.read(value, where)
        read = list(zip(reading.trajectories, reading.speakers, strict=True))
    else:
        read = _without_calls(value, where)
    return [_rendered(value, trajectory, speakers, chat) for trajectory, speakers in read]


def _rendered(record: Json, trajectory: Trajectory, speakers: Speakers, chat: Chat) -> Trajectory:
    before = told_before(record, speakers)
    if trajectory.turns:
        if not before:
            refuse_unasked(record)
        refuse_unanswered(trajectory.turns, chain(before, *speakers.after[:-1]))
    tools = tools_of(record)
    chat = chat if tools is None else chat.with_tools(tools)
    made = in_template(trajectory, chat, before, speakers.after, speakers.thoughts)
    turns = [turn if own else _unlearnt(turn) for turn, own in zip(made.turns, speakers.learnt, strict=True)]
    return _until_learnt(replace(made, turns=tuple(turns)))


def in_template(
    trajectory: Trajectory, chat: Chat, before: Sequence[TextMessage],
    after: Sequence[Sequence[TextMessage]] | None = None, thoughts: Sequence[str] = (),
) -> Trajectory:  # fmt: skip
    """Render the trajectory; keep what is known of observations where a turn's calls are those of the trajectory."""
    made = render(trajectory, chat, before, after, thoughts)
    turns = [_observed(turn, was) for turn, was in zip(made.turns, trajectory.turns, strict=True)]
    return replace(made, turns=tuple(turns))


def _observed(turn: Turn, was: Turn) -> Turn:
    if len(turn.calls) != len(was.observations):
        return turn
    pairs = zip(turn.calls, was.observations, strict=True)
    return replace(turn, observations=tuple(replace(o, call_id=call.id) for call, o in pairs))


def _unlearnt(turn: Turn) -> Turn:
    """The turn as part of the history alone: the model is told that it wrote this."""
    told = [replace(one, kind="prompt") if one.kind in TRAINED else one for one in turn.segments]
    return replace(turn, segments=tuple(told))


def _until_learnt(trajectory: Trajectory) -> Trajectory:
    """Without what follows the model's last words that are learnt."""
    count = max((n for n, turn in enumerate(trajectory.turns, 1) if turn.generated), default=0)
    if not count:
        return trajectory
    *others, last = trajectory.turns[:count]
    return replace(trajectory, turns=(*others, replace(last, segments=last.generated)))


def _without_calls(record: Json, where: str) -> list[tuple[Trajectory, Speakers]]:
    """A conversation, or texts, in which no tool was called."""
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
    # None of these stands in a record whose list of messages is empty.
    value: Json = next((record[name] for name in TEXTS if name in record), [])
    texts = value if isinstance(value, list) else [value]
    speakers = Speakers(asked, [[]], [True])
    return [(Trajectory(where, where, (), (Turn((Segment("sampled", str(text)),)),)), speakers) for text in texts]
