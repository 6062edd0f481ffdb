"""Demonstrations to learn from: our own trajectories, by their ids; anyone's transcripts, through the model's template.

The formats are those of `retcon purify`, so that what it wrote can be learnt from.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from retcon.chat.chat import Chat
from retcon.chat.render import render
from retcon.chat.template import Refused
from retcon.chat.templated import PROBED
from retcon.chat.types import Told
from retcon.core.codec import from_dict
from retcon.core.errors import MissingIds, RecordError, TaskWarning, located
from retcon.core.sample import to_sample
from retcon.core.texts import counted
from retcon.core.types import TRAINED, Sample, Segment, Trajectory, Turn
from retcon.store.foreign.records import Record, open_source
from retcon.train.datasets.asked import HalfCall, refuse_unanswered, refuse_unasked, told_before, tools_of
from retcon.train.datasets.messages import pieces_in, refuse_unread, words_of
from retcon.train.datasets.vocabulary import refuse_other_texts, refuse_other_vocabulary
from retcon.transcripts.detection.detector import Detector, TornLine, sampled
from retcon.transcripts.purifying.assignment import expand
from retcon.transcripts.reading.items import TEXTS, context_of, find_items
from retcon.transcripts.reading.pieces import thought_in
from retcon.transcripts.reading.roles import is_unlearnt, speaker_of
from retcon.transcripts.reading.style import decoded
from retcon.transcripts.types import Json, Speakers

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
    shows = PROBED.name in _text(chat.showing([PROBED]).opened([("user", "x")]))
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
    source, detector, known = sampled(open_source(file), "auto")
    half: list[str] = []
    try:
        for record in source.records:
            try:
                value = known[record.number] if record.number in known else decoded(record)
                yield from ((record, one) for one in rendered(value, detector, chat, record.where))
            except HalfCall as error:
                half.append(str(located(error, record.where)))
            except (RecordError, Refused) as error:
                raise located(error, record.where) from error
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
    chat = chat if tools is None else chat.showing(tools)
    made = in_template(trajectory, chat, before, speakers.after, speakers.thoughts)
    turns = [turn if own else _unlearnt(turn) for turn, own in zip(made.turns, speakers.learnt, strict=True)]
    return _until_learnt(replace(made, turns=tuple(turns)))


def in_template(
    trajectory: Trajectory, chat: Chat, before: Sequence[Told], after: Sequence[Sequence[Told]] | None = None,
    thoughts: Sequence[str] = (),
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
    asked: list[Told] = [("user", context)] if context else []
    if (found := find_items(record)) is not None:
        before = asked if found[0] == ("completion",) else []
        turns: list[Turn] = []
        after: list[list[Told]] = []
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
