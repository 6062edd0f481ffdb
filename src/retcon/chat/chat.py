"""Conversations with one model: messages to ids, generated ids to calls.

Ids are only ever appended: what was sampled is never encoded again, and a turn costs what it adds. Transcripts of text
alone are rendered in the model's template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from retcon.chat.family import FAMILIES, Family, Framing, NamedCall
from retcon.chat.template import framing_of
from retcon.chat.types import Answer, FoundCall, Parsed, Piece, TextMessage, Tokenizer, glue
from retcon.core.errors import CheckpointError
from retcon.core.types import Kind, Observation, Segment, ToolCall, ToolSpec, Trajectory, Turn


def _bisect(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """Return the first number after `start` that holds, else `end`; steps double, then halve.

    holds: monotonic, and called with numbers not far beyond the result.
    """
    low, high = start, start + 1
    while high < end and not holds(high):
        low, high = high, 2 * high - start
    high = min(high, end)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class TokenStarts:
    """Lookup of ids by the character at which they begin.

    ids: (T,), of `text`. Asked in ascending order: each search begins where the one before ended and doubles its step,
    so that all of them together decode in linear time, however many calls a reply has.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], text: str) -> None:
        self._decode, self._ids, self._text = tokenizer.decode, ids, text
        self._id = self._char = 0  # an id begins at that character

    def of(self, char: int) -> int | None:
        """Return the index of the id that begins at text[char], or None.

        As that is ASCII, whether a prefix of the ids has it cannot change as ids are added, not even where a character
        is spread over several of them: bisection finds the shortest such prefix.
        """
        target = self._text[self._char : char + 1]
        low = _bisect(self._id, len(self._ids), lambda end: self._between(end).startswith(target)) - 1
        before = self._between(low)
        begins = before == target[:-1]
        self._go_on_from(low, before)
        return low if begins else None

    def _between(self, end: int) -> str:
        return self._decode(self._ids[self._id : end])

    def _go_on_from(self, index: int, before: str) -> None:
        """Not from within a character that ids share, nor from a space that some tokenizers drop at a start."""
        char = self._char + len(before)
        following = self._decode(self._ids[index : index + 1])
        if following and self._text.startswith(before, self._char) and self._text.startswith(following, char):
            self._id, self._char = index, char


class JointEncoder:
    """Encoder of pieces that are one text between two control tokens.

    So a full stop that ends an observation and the line end that the glue goes on with are one id where the model has
    one for both. An id that belongs to two pieces is the first one's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        longest_first = sorted(tokenizer.controls, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def __call__(self, pieces: Sequence[Piece]) -> list[list[int]]:
        ids: list[list[int]] = [[] for _ in pieces]
        stretch: list[tuple[int, str]] = []
        for n, piece in enumerate(pieces):
            parts = self._controls.split(piece.text) if piece.sort == "glue" and self._controls else [piece.text]
            for odd, part in enumerate(parts):
                if odd % 2 == 0:
                    stretch.append((n, part))
                else:
                    self._add(stretch, ids)
                    stretch = []
                    ids[n].append(self._tokenizer.special_id(part))
        self._add(stretch, ids)
        return ids

    def _add(self, stretch: Sequence[tuple[int, str]], ids: Sequence[list[int]]) -> None:
        """Encode a stretch, and append to each of its pieces its own ids."""
        parts = [(n, part) for n, part in stretch if part]
        whole = self._tokenizer.encode("".join(part for _, part in parts))
        taken, over = 0, 0  # ids that are given away, and how many characters of the next piece are in them
        for n, part in parts[:-1]:
            if over >= len(part):
                over -= len(part)
                continue
            end, over = self._covering(whole, taken, part[over:])
            ids[n].extend(whole[taken:end])
            taken = end
        if parts:
            ids[parts[-1][0]].extend(whole[taken:])

    def _covering(self, ids: Sequence[int], start: int, text: str) -> tuple[int, int]:
        """Return where the ids from `start` on cover `text`, and by how many characters they exceed it."""
        end = _bisect(start, len(ids), lambda end: self._tokenizer.decode(ids[start:end]).startswith(text))
        return end, max(0, len(self._tokenizer.decode(ids[start:end])) - len(text))


_LABEL = re.compile(r"[\w.:-]{1,100}")
"""Labels of calls that glue, where control tokens count, may repeat."""


class Chat:
    """Renderer of one model's conversations, and parser of its calls.

    style: the name of a family (`retcon.chat.family.FAMILIES`) or an import path. system: the default system prompt.
    tools: those that the model is shown, where its family shows any. framing: the model's own (`retcon.chat.template`),
    in place of the family's. stop_ids: the ids that end a generation. Raises RecipeError for an unknown style,
    CheckpointError where the tokenizer lacks a token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        style: str = "markdown",
        system: str | None = None,
        tools: Sequence[ToolSpec] = (),
        framing: Framing | None = None,
        family: Family | None = None,
    ) -> None:
        self.family = family or FAMILIES.find(style)
        self.tokenizer = tokenizer
        self.style = family.name if family else style
        self.system = system
        self.tools = tuple(tools)
        self.framing: Framing = framing or framing_of(self.family)  # type: ignore[arg-type]
        self._together = JointEncoder(tokenizer)
        if framing is None:
            for control in self.family.controls:
                tokenizer.special_id(control)
        ends = tuple(dict.fromkeys((tokenizer.special_id(self.family.ends[0]), *self._ids(self.family.ends[1:]))))
        self._ends = frozenset(ends)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*ends, *self._ids(self.family.stops))))

    def with_tools(self, tools: Sequence[ToolSpec]) -> Chat:
        """Return the chat with these tools."""
        if tuple(tools) == self.tools:
            return self
        return Chat(self.tokenizer, system=self.system, tools=tools, framing=self.framing, family=self.family)

    def without_system(self) -> Chat:
        """Return the chat without a system prompt of its own."""
        if self.system is None:
            return self
        return Chat(self.tokenizer, tools=self.tools, framing=self.framing, family=self.family)

    def prompt(
        self, question: str, system: str | None = None, before: Sequence[TextMessage] = ()
    ) -> tuple[Segment, ...]:
        """Render the prompt of a question. before: messages between the system prompt and it."""
        system = self.system if system is None else system
        first: list[TextMessage] = [] if system is None else [("system", system)]
        return self.render_prompt([*first, *before, ("user", question)])

    def render_prompt(self, messages: Sequence[TextMessage]) -> tuple[Segment, ...]:
        """Render messages, up to where the model's turn opens; all of kind `prompt`."""
        return self._segments(self.framing.render_prompt(messages, self.tools), "prompt")

    def parse(self, ids: Sequence[int], *, prefix: str) -> Parsed:
        """Parse the calls in generated ids, (T,); never raises.

        Calls are named `prefix.0`, `prefix.1`, …; `start` is the index of the id at which the call's marker begins,
        None where that id also holds text before the marker. A stop id at the end is part of `Parsed.text` alone.
        """
        text = self.tokenizer.decode(ids)
        ended = bool(ids) and ids[-1] in self.stop_ids
        body = self.tokenizer.decode(ids[:-1]) if ended else text
        return Parsed(text, tuple(_to_calls(self._calls(body), prefix, TokenStarts(self.tokenizer, ids, text).of)))

    def parse_text(self, text: str, *, prefix: str) -> Parsed:
        """Parse the calls in a text, from engines without ids; `start` stays unset."""
        return Parsed(text, tuple(_to_calls(self._calls(self._body(text)), prefix, lambda _: None)))

    def render_turn(self, text: str, calls: Sequence[NamedCall] = (), thought: Sequence[Piece] = ()) -> Segment:
        """Render a whole turn with its end, of kind `sampled`.

        calls: those that `text` does not hold already. thought: of `framing.render_thought`.
        """
        pieces = [*thought, *self.family.render_turn(text, calls), glue(self.family.end_of(calls))]
        ids = [i for own in self._encode(pieces) for i in own]
        return Segment("sampled", self.tokenizer.decode(ids), tuple(ids))

    def render_messages(self, messages: Sequence[TextMessage], *, last_id: int | None = None) -> tuple[Segment, ...]:
        """Render the messages after a turn without calls. last_id: as in `observations`."""
        return self._segments(self._closed(self.framing.render_messages(messages, self.tools), last_id), "scaffold")

    def observations(
        self,
        calls: Sequence[ToolCall],
        observations: Sequence[Observation],
        *,
        last_id: int | None = None,
        messages: Sequence[TextMessage] = (),
        written: str = "",
    ) -> tuple[Segment, ...]:
        """Render the observations of a turn's calls, with the next opening.

        last_id: the last id of the turn. The glue begins after the turn's end (`<|im_end|>`), which a turn that ended
        well has as its own last id; where `last_id` is another one (`<|endoftext|>`, or a cut), the glue brings the
        missing end itself. None: the turn ended well. messages: those after the observations. written: the turn's text,
        where observations must name calls as the model did. Raises ValueError where observations answer other calls.
        """
        if not calls or [c.id for c in calls] != [o.call_id for o in observations]:
            raise ValueError(
                f"observations {[o.call_id for o in observations]} do not answer calls {[c.id for c in calls]} in order"
            )
        found = self.family.find_calls(self._body(written)) if self.family.labels_calls else ()
        labels = [call.label if _LABEL.fullmatch(call.label) else "" for call in found][: len(calls)]
        answers = [
            Answer(call.name, observation.text, label or "")
            for call, observation, label in zip_longest(calls, observations, labels)
        ]
        end = self.family.end_of([(call.name, call.arguments) for call in calls])
        return self._segments(self._closed(self.framing.render_results(answers, messages), last_id, end), "scaffold")

    def observations_in(self, ids: Sequence[int]) -> list[str]:
        """Return the tools' answers in a conversation's ids, in order."""
        return self.family.observations_in(self.tokenizer.decode(ids))

    def _encode(self, pieces: Sequence[Piece]) -> list[list[int]]:
        """Ids of each piece, (T,) each."""
        if self.family.piecewise:
            return [self.tokenizer.encode(piece.text, special=piece.sort == "glue") for piece in pieces]
        return self._together(pieces)

    def _calls(self, body: str) -> Iterator[FoundCall]:
        return (self.family.cast_arguments(call, self.tools) for call in self.family.find_calls(body))

    def _body(self, text: str) -> str:
        for control in (*self.family.stops, *self.family.ends):
            text = text.removesuffix(control)
        return text

    def _closed(self, pieces: Sequence[Piece], last_id: int | None, end: str = "") -> list[Piece]:
        first, *rest = pieces or [glue("")]
        closing = "" if last_id is None or last_id in self._ends else end or self.family.ends[0]
        return [glue(closing + first.text), *rest] if first.sort == "glue" else [glue(closing), *pieces]

    def _segments(self, pieces: Sequence[Piece], kind: Kind) -> tuple[Segment, ...]:
        """Encode pieces as segments. kind: of the glue; a user's text is of kind `prompt` wherever it stands.

        The text is that of the ids, which a tokenizer that normalises may have changed.
        """
        segments: list[Segment] = []
        for piece, ids in zip(pieces, self._encode(pieces), strict=True):
            if ids or piece.sort == "words":
                own: Kind = {"glue": kind, "words": "prompt", "observation": "observation"}[piece.sort]
                segments.append(Segment(own, self.tokenizer.decode(ids), tuple(ids)))
        return tuple(segments)

    def _ids(self, controls: Iterable[str]) -> Iterator[int]:
        for control in controls:
            try:
                yield self.tokenizer.special_id(control)
            except CheckpointError:
                continue


def _to_calls(found: Iterable[FoundCall], prefix: str, index: Callable[[int], int | None]) -> Iterator[ToolCall]:
    for n, call in enumerate(found):
        start = None if call.inside else index(call.char)
        yield ToolCall(f"{prefix}.{n}", call.name, call.arguments, call.char, start)


_THOUGHT = re.compile(r"\s*(?:<think>)?(?P<thought>.*?)</think>\s*", re.DOTALL)


def render(
    trajectory: Trajectory, chat: Chat, before: Sequence[TextMessage],
    after: Sequence[Sequence[TextMessage]] | None = None, thoughts: Sequence[str] = (),
) -> Trajectory:  # fmt: skip
    """Render a trajectory in the chat's template, with a rollout's ids.

    before: the first messages, in place of the trajectory's prompt, which has no roles; after: those after each turn,
    None for its segments of kind `prompt`, as the user's. thoughts: each turn's reasoning, "" for none; so is a text up
    to `</think>`. It goes where the template has it, else before the words. The model's turns are of kind `sampled`,
    with calls in the chat's style.
    """
    last = len(trajectory.turns) - 1
    messages = [_user_messages(turn) for turn in trajectory.turns] if after is None else after
    turns = tuple(
        _turn(turn, n, chat, own, thought, ends=n == last)
        for n, (turn, own, thought) in enumerate(
            zip(trajectory.turns, messages, thoughts or [""] * len(trajectory.turns), strict=True)
        )
    )
    return replace(trajectory, prompt=chat.render_prompt(before), turns=turns)


def _user_messages(turn: Turn) -> list[TextMessage]:
    return [("user", s.text) for s in turn.segments if s.kind == "prompt"]


def _turn(turn: Turn, number: int, chat: Chat, messages: Sequence[TextMessage], thought: str, *, ends: bool) -> Turn:
    begins = thought
    if not thought and (found := _THOUGHT.match(turn.text, 0, turn.calls[0].char if turn.calls else len(turn.text))):
        begins, thought = found[0], found["thought"]
    pieces = chat.framing.render_thought(thought.strip(), last=ends)
    written = chat.render_turn(*_written(turn, chat, 0 if pieces is None else len(begins)), pieces or ())
    calls = chat.parse(written.ids or (), prefix=f"{number}.0").calls
    rest: tuple[Segment, ...] = ()
    if turn.observations:
        answered = [call for call in turn.calls if call.id in {o.call_id for o in turn.observations}]
        rest = chat.observations(answered, turn.observations, messages=messages, written=written.text)
    elif messages or not ends:
        rest = chat.render_messages(messages)
    return Turn((written, *rest), calls, (), turn.stop)


def _written(turn: Turn, chat: Chat, start: int) -> tuple[str, Sequence[NamedCall]]:
    """Return a turn's text from `start` on if its calls are in the chat's style, else its words and calls."""
    text = turn.text[start:].strip()
    own = chat.parse_text(text, prefix="").calls
    if [_key(c, chat) for c in own] == [_key(c, chat) for c in turn.calls]:
        if chat.family.calls_are_text or not own:
            return text, ()
        words = text[: own[0].char].strip()
    else:
        words = turn.text[start : turn.calls[0].char].strip() if turn.calls else text
    named = chat.family.names_calls
    return words, [(call.name, _arguments(call.arguments) if named else call.arguments) for call in turn.calls]


def _key(call: ToolCall, chat: Chat) -> tuple[str, object]:
    """Return the key by which calls are compared: in Markdown the program alone."""
    return (call.name, _arguments(call.arguments)) if chat.family.names_calls else ("", call.code.strip())


def _arguments(arguments: Mapping[str, object] | str) -> Mapping[str, object] | str:
    """Drop the copy of the program under `code` that reading adds where a tool has another key."""
    if isinstance(arguments, str) or "code" not in arguments:
        return arguments
    others = {name: value for name, value in arguments.items() if name != "code"}
    return others if arguments["code"] in others.values() else arguments
