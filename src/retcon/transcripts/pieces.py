"""Transcripts as pieces of items, cut into turns and rejoined without some.

An item is a message, or a block of text. Its text is cut into pieces without loss: context, the model's words, its
calls, and their results. Splicing moves whole pieces, so that an item whose pieces all stay is not touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retcon.chat.types import TextMessage
from retcon.core.types import Message, Observation, Pair, Segment, ToolCall, Trajectory, Turn
from retcon.purify.failing import FAILURES, NO_PROGRAM, is_runner, looks_up
from retcon.purify.kept import Edit
from retcon.purify.offline import RepairResult, Splice
from retcon.purify.pairs import preference_pairs
from retcon.purify.words import cut_spans, rewrite
from retcon.transcripts.items import Thought, is_unlearnt, role_of
from retcon.transcripts.types import Json, Speakers, json_in
from retcon.transcripts.verdicts import Verdict, is_negative_result, judge

_PROGRAMS = ("code", "source", "script", "python_code", "snippet", "program", "cell", "input")
_CERTAIN = ("code", "python_code")
"""Of these the ones that are a program's whatever the tool is called, unless it looks something up by a code."""
_COMMANDS = ("command", "cmd", "bash", "shell_command", "cmds", "keystrokes", "argv")
_EDITED = frozenset(
    {"path", "file_path", "filepath", "filename", "old_str", "new_str", "old_string", "new_string", "file_text"}
    | {"insert_line", "insert_text", "view_range"}
)
"""Arguments of editors, whose `command` is no more than a verb: what is done stands in these."""
_KEYS = dict.fromkeys((*_PROGRAMS, *_COMMANDS)).keys()
"""In the order in which they are asked for."""
_LANGUAGES = ("language", "lang", "runtime")
"""Arguments that say what language a program is in, whatever the tool is called."""
_SHELLS = frozenset(
    {"bash", "shell", "sh", "terminal", "execute_bash", "run_command", "bash_session", "run_shell"}
    | {"zsh", "console", "pwsh", "powershell", "ps1"}
)
"""Names of tools, and of languages."""


def is_shell(name: str) -> bool:
    """Whether a tool or language of this name is a shell."""
    return name.lower() in _SHELLS


def program_argument(name: str, arguments: Mapping[str, object] | str) -> tuple[Mapping[str, object] | str, str | None]:
    """Return arguments with the program under `code`, and its language.

    `code` is what similarity compares, whatever the tool calls it. The language is `shell` for a shell's, whose
    effects cannot be read from its text; `none` where `code` is no program; else None. A command may be a list of
    words. An editor's call has no program: all its arguments are compared."""
    if isinstance(arguments, str):
        return arguments, None
    if len(arguments) == 1 and isinstance(arguments.get("code"), str) and is_runner(name):  # as most programs are
        return arguments, "shell" if is_shell(name) else None
    named = "shell" if is_shell(name) else None
    if len(arguments) > 1:
        if any(isinstance(value := arguments.get(key), str) and is_shell(value) for key in _LANGUAGES):
            named = "shell"
        edited = any(arguments.get(key) is not None for key in _EDITED)
        if edited and any(isinstance(arguments.get(key), str) for key in _COMMANDS):
            return arguments, "shell"
    for key in _KEYS if len(arguments) > 1 else _KEYS & arguments.keys():
        value = arguments.get(key)
        if key in _COMMANDS and isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            value = " ".join(value)
        if isinstance(value, str) and (key in _COMMANDS or _is_program(name, key, value)):
            own = arguments if key == "code" else {**arguments, "code": value}
            return own, "shell" if key in _COMMANDS else named
    return arguments, NO_PROGRAM if "code" in arguments else named


def _is_program(name: str, key: str, value: str) -> bool:
    """Whether an argument is a program: that of a tool that runs such, or one that says so and is no mere word."""
    return is_runner(name) or (key in _CERTAIN and not looks_up(name) and not value.isidentifier())


def shown_call(call: Call) -> str:
    """Render a call as our record shows it, apart from text."""
    arguments, language = program_argument(call.name, call.arguments)
    if isinstance(arguments, str):
        return f"\n```{call.name}\n{arguments}\n```"
    if "code" in arguments and language != NO_PROGRAM:
        fence = "bash" if language == "shell" else "python"
        return f"\n```{fence}\n{arguments['code']}\n```"
    return f"\n```{call.name}\n{msgspec.json.format(msgspec.json.encode(arguments)).decode()}\n```"


PieceKind = Literal["context", "assistant", "call", "result"]


class Call(Struct, frozen=True):
    """A call in a piece. char: where in the piece's text. id: the format's own, None where it has none."""

    name: str
    arguments: Mapping[str, object] | str
    char: int = 0
    id: str | None = None


class ToolOutput(Struct, frozen=True):
    """Output of a call. verdict: the format's own. typed: whether it has one, so that None is a success; if not, the
    rules of `verdicts` judge it."""

    text: str
    call_id: str | None = None
    verdict: Verdict | None = None
    typed: bool = False


class Piece(Struct, frozen=True):
    """A piece of an item's text: context, words, calls or results.

    owner: the item's number. payload: the item's other fields that move with it (such as tool_calls). role: the speaker
    of context, None for the item's own, "" for no speaker. thought: the reasoning that begins its text."""

    kind: PieceKind
    owner: int
    text: str
    calls: tuple[Call, ...] = ()
    outputs: tuple[ToolOutput, ...] = ()
    payload: Mapping[str, Json] = MappingProxyType({})
    role: str | None = None
    thought: str = ""


Rebuild = Callable[[Json, Sequence[Piece]], Json]
"""An item and the pieces that it is to have, to the new item."""
Messages = tuple[Message, ...]
Stretch = tuple[int, int]
"""[start, end) of a text."""
Reword = Callable[["Piece", Sequence[Stretch]], "Piece"]
"""A piece of words, without these stretches of its text."""


class _Span(Struct, frozen=True):
    """A turn among the pieces: [start, end). Its calls are in the pieces from `call` to `last` (None: it has none),
    between which the model may have spoken; outputs from there."""

    start: int
    call: int | None
    last: int | None
    end: int


def cut_words(piece: Piece, cuts: Sequence[Stretch]) -> Piece:
    """Remove spans from a piece whose item is rebuilt from texts."""
    return replace(piece, text=cut_spans(piece.text, cuts))


class PieceReading:
    """A transcript in pieces.

    apart: words have items of their own (blocks), though a thought may stand in a call's; if not, they stand in
    that of the call (messages). reword: for pieces whose words stand in their payload too. asked: the messages of
    the context, where known. system: as in `Speakers`."""

    def __init__(
        self, items: Sequence[Json], pieces: Sequence[Piece], id: str, rebuild: Rebuild,
        *, apart: bool = False, context: str = "", reword: Reword = cut_words, asked: Sequence[TextMessage] = (),
        system: str = "",
    ) -> None:  # fmt: skip
        self._items = items
        self._pieces = list(pieces)
        self._owned: dict[int, list[Piece]] = {}
        for piece in self._pieces:
            self._owned.setdefault(piece.owner, []).append(piece)
        self._rebuild = rebuild
        self._reword = reword
        self._apart = apart
        self._spans = _spans(self._pieces, apart)
        self._asked = asked or [("user", context)] * bool(context)
        self._system = system
        first = self._spans[0].start if self._spans else len(self._pieces)
        prompts = [context] * bool(context) + [p.text for p in self._pieces[:first]]
        turns = [_turn(self._pieces, span, n) for n, span in enumerate(self._spans)]
        self.trajectory = Trajectory(
            id, id, tuple(Segment("prompt", text) for text in prompts), tuple(turns),
            stop="turns" if turns and turns[-1].calls else "answer",
        )  # fmt: skip

    @property
    def speakers(self) -> Speakers:
        """Who speaks in the trajectory."""
        first = self._spans[0].start if self._spans else len(self._pieces)
        return Speakers(
            [*self._asked, *self._context_of(0, first)],
            [self._context_of(span.start, span.end) for span in self._spans],
            [not any(self._unlearnt(self._pieces[span.start : span.end])) for span in self._spans],
            self._system,
            [thought_in(self._pieces[span.start : span.end]) for span in self._spans],
        )

    def _context_of(self, start: int, end: int) -> list[TextMessage]:
        context = [piece for piece in self._pieces[start:end] if piece.kind == "context"]
        roles = [role_of(self._items[piece.owner]) if piece.role is None else piece.role for piece in context]
        return [(role, piece.text) for role, piece in zip(roles, context, strict=True) if role]

    def _unlearnt(self, pieces: Sequence[Piece]) -> Iterator[bool]:
        return (is_unlearnt(self._items[piece.owner]) for piece in pieces if piece.kind in ("assistant", "call"))

    def items(self, result: RepairResult) -> list[Json]:
        """Return the items with the splices, without what was cut."""
        return self._put_together(self.spliced(result))

    def spliced(self, result: RepairResult) -> list[Piece]:
        """Return the pieces with the splices, without what was cut."""
        return self._joined(self._edited(result.edits), result.splices)

    def sides(self, result: RepairResult) -> Iterator[tuple[Messages, Messages, Messages]]:
        """Yield each splice's prior items, current items and failed items."""
        pieces = self._edited(result.edits)
        before: list[Json] = []
        last: list[Piece] = []  # of the item before that may go on
        done = 0
        for splice in result.splices:
            failure, fix = self._spans[splice.failure], self._spans[splice.fix]
            last = self._extended(before, last, pieces[done : failure.start])
            written = self._written(pieces, failure, fix, splice.shallow)
            failed = self._pieces[failure.start : (failure.last or failure.start) + 1]
            yield (
                _messages([*before, *self._put_together(last)]),
                _messages(self._put_together(written)),
                _messages(self._put_together(failed)),
            )
            last = self._extended(before, last, written)
            done = _after(fix)

    def _edited(self, edits: Sequence[Edit]) -> list[Piece]:
        """Return the pieces without what edits cut."""
        pieces = list(self._pieces)
        for edit in edits:
            span = self._spans[edit.turn]
            at = 0
            for n in range(span.start, span.end if span.call is None else span.call):
                piece = pieces[n]
                if piece.kind != "assistant":
                    continue
                end = at + len(piece.text)
                inside = [(max(s, at) - at, min(e, end) - at) for s, e in edit.words if s < end and e > at]
                pieces[n] = self._reword(piece, inside) if inside else piece
                at = end
            if edit.program is not None and span.call is not None:
                for n in range(span.call, span.end):
                    pieces[n] = _rewritten(pieces[n], edit.program)
        return pieces

    def _joined(self, pieces: Sequence[Piece], splices: Sequence[Splice]) -> list[Piece]:
        joined: list[Piece] = []
        done = 0
        for splice in splices:
            failure, fix = self._spans[splice.failure], self._spans[splice.fix]
            joined += pieces[done : failure.start]
            joined += self._written(pieces, failure, fix, splice.shallow)
            done = _after(fix)
        return [*joined, *pieces[done:]]

    def _written(self, pieces: Sequence[Piece], failure: _Span, fix: _Span, shallow: bool) -> list[Piece]:
        if fix.call is None or fix.last is None or failure.call is None:
            raise ValueError("a splice joins turns with calls")
        if not shallow:
            return list(pieces[fix.start : fix.last + 1])
        words, calls = pieces[failure.start : failure.call], pieces[fix.call : fix.last + 1]
        home, own = self._pieces[failure.call].owner, calls[0].owner
        if self._apart:
            return [*(replace(p, owner=own) if p.owner == home else p for p in words), *calls]
        if any(p.owner == own for p in self._pieces[fix.last + 1 : fix.last + 2]):
            # The item of the fix goes on after its calls: the words move there.
            return [*(replace(p, owner=own) for p in words), *calls]
        return [*words, *(replace(p, owner=home) if p.owner == own else p for p in calls)]

    def _put_together(self, pieces: Sequence[Piece]) -> list[Json]:
        items: list[Json] = []
        last = self._extended(items, [], pieces)
        return [*items, self._item(last)] if last else items

    def _extended(self, items: list[Json], last: list[Piece], pieces: Sequence[Piece]) -> list[Piece]:
        """Add finished items to `items`; return the pieces of the open one.

        `last` are the pieces of the item that begins. Pieces of one item are adjacent."""
        for piece in pieces:
            if last and last[-1].owner != piece.owner:
                items.append(self._item(last))
                last = []
            last.append(piece)
        return last

    def _item(self, own: list[Piece]) -> Json:
        owner = own[0].owner
        return self._items[owner] if own == self._owned[owner] else self._rebuild(self._items[owner], own)


class RecordReading:
    """A record read as transcripts in pieces."""

    def __init__(self, record: Json, readings: Sequence[PieceReading]) -> None:
        self._record = record
        self.readings = readings
        self.trajectories: Sequence[Trajectory] = [reading.trajectory for reading in readings]

    @property
    def speakers(self) -> Sequence[Speakers]:
        return [reading.speakers for reading in self.readings]

    def pairs(self, results: Sequence[RepairResult]) -> Iterator[Pair]:
        for result in results:
            yield from preference_pairs(result.trajectory)


def thought_in(pieces: Sequence[Piece]) -> str:
    """Return the reasoning that begins a turn."""
    found = ""
    for piece in pieces:
        found += piece.text if isinstance(piece.text, Thought) else piece.thought
        if not isinstance(piece.text, Thought):
            break
    return found


def _messages(items: Sequence[Json]) -> Messages:
    return tuple(item for item in items if isinstance(item, dict))


def _after(span: _Span) -> int:
    """Return where the calls of a turn end, or a turn without calls."""
    return (span.last if span.last is not None else span.end - 1) + 1


def _rewritten(piece: Piece, program: tuple[str, str]) -> Piece:
    """Replace the program in calls and in outputs that repeat it."""
    if piece.kind not in ("call", "result"):
        return piece
    payload = rewrite(dict(piece.payload), *program)
    text = rewrite(piece.text, *program) if piece.kind == "call" else piece.text
    return replace(piece, text=text, payload=payload)


def _spans(pieces: Sequence[Piece], apart: bool) -> list[_Span]:
    spans: list[_Span] = []
    start: int | None = None
    call: int | None = None
    after_context = False
    for n, piece in enumerate(pieces):
        if piece.kind == "context":
            after_context = True
            continue
        begins = piece.kind in ("assistant", "call") and (
            start is None or call is not None or after_context or (not apart and pieces[n - 1].owner != piece.owner)
        )
        if begins:
            if start is not None:
                spans.append(_Span(start, call, call, n))
            start, call = n, None
        if piece.kind == "call":
            call = n
        after_context = False
    if start is not None:
        spans.append(_Span(start, call, call, len(pieces)))
    return _joined(pieces, spans)


def _joined(pieces: Sequence[Piece], spans: Sequence[_Span]) -> list[_Span]:
    """Turns whose calls are answered together as one: a model may speak between calls that it makes side by side."""
    joined: list[_Span] = []
    waiting = 0
    """Where in `joined` the turns begin that nothing has answered yet, and after which no user spoke."""
    for span in spans:
        inside = pieces[span.start : span.end]
        outputs = [output for piece in inside for output in piece.outputs]
        joined.append(span)
        if outputs and waiting + 1 < len(joined):
            first = waiting + _first_answered(outputs, [_found(pieces, one) for one in joined[waiting:]])
            parts = joined[first:]
            calls = [n for one in parts for n in (one.call, one.last) if n is not None]
            if len(parts) > 1:
                joined[first:] = [_Span(parts[0].start, calls[0], calls[-1], span.end)]
        if outputs or any(piece.kind == "context" for piece in inside):
            waiting = len(joined)
    return joined


def _first_answered(outputs: Sequence[ToolOutput], calls: Sequence[Sequence[Call]]) -> int:
    """Find the first of these turns that an output answers, by id or from the last."""
    named = {call.id for own in calls for call in own} & {output.call_id for output in outputs}
    left = Counter(output.call_id if output.call_id in named else None for output in outputs)
    first = len(calls) - 1
    for at in range(first, -1, -1):
        for call in calls[at]:
            own_id = call.id if call.id in named else None
            if left[own_id]:
                left[own_id] -= 1
                first = at
    return first


def _found(pieces: Sequence[Piece], span: _Span) -> list[Call]:
    """Return the calls of a turn as the format has them."""
    return [call for piece in pieces[span.start : span.end] for call in piece.calls]


def awaits_output(pieces: Sequence[Piece]) -> bool:
    """Whether what a tool says after these pieces is an output: they end with a call or an output, or with a call and
    words after it."""
    if pieces and pieces[-1].kind != "assistant":
        return pieces[-1].kind in ("call", "result")
    return next((piece.kind for piece in reversed(pieces) if piece.kind != "assistant"), None) == "call"


def _turn(pieces: Sequence[Piece], span: _Span, number: int) -> Turn:
    segments: list[Segment] = []
    rest: list[Segment] = []
    outputs: list[ToolOutput] = []
    found = _found(pieces, span)
    times = Counter(call.id for call in found) if len(found) > 1 else {}
    calls: list[ToolCall] = []
    at = 0
    for piece in pieces[span.start : span.end]:
        if piece.kind == "result":
            outputs += piece.outputs
            rest += [Segment("observation", o.text) for o in piece.outputs]
        elif piece.kind == "context":
            rest.append(Segment("prompt", piece.text))
        elif piece.text:
            segments.append(Segment("sampled", str(piece.text)))
        for call in piece.calls:
            own_id = call.id if call.id and times.get(call.id, 1) == 1 else f"{number}.{len(calls)}"
            arguments, language = program_argument(call.name, call.arguments)
            calls.append(ToolCall(own_id, call.name, arguments, at + call.char, None, language))
        at += len(piece.text)
    if not found:
        return Turn((*segments, *rest))
    return Turn((*segments, *rest), tuple(calls), _observations(calls, found, outputs), "call")


def _observations(
    calls: Sequence[ToolCall], found: Sequence[Call], outputs: Sequence[ToolOutput]
) -> tuple[Observation, ...]:
    """Return an observation for each call with an output, matched by the format's id, else in order. Calls of one id
    (some servers give all an empty one) have the outputs of that id in order; the last of them has the rest, of which
    the first that is a failure counts, else the last."""
    if len(found) == len(outputs) == 1 and outputs[0].call_id in (None, found[0].id):
        return (_observation(calls[0], outputs[0]),)
    by_id: dict[str, list[ToolOutput]] = {}
    for output in outputs:
        if output.call_id is not None:
            by_id.setdefault(output.call_id, []).append(output)
    left = Counter(c.id for c in found)
    in_order = iter([o for o in outputs if o.call_id is None or o.call_id not in left])
    observations: list[Observation] = []
    for call, own in zip(calls, found, strict=True):
        if own.id is None or own.id not in by_id:
            answers = [output for output in (next(in_order, None),) if output is not None]
        else:
            left[own.id] -= 1
            named = by_id[own.id]
            answers = named[: 1 if left[own.id] else None]
            del named[:1]
        seen = [_observation(call, answer) for answer in answers]
        observations += [next((one for one in seen if one.status in FAILURES), seen[-1])] if seen else []
    return tuple(observations)


def _observation(call: ToolCall, output: ToolOutput) -> Observation:
    verdict = output.verdict
    if output.typed:
        verdict = None if is_negative_result(verdict, output.text, (call,)) else verdict
    else:
        verdict = judge(output.text, (call,))
        if verdict is None and call.malformed and call.code.lstrip()[:1] in ("{", "[") and json_in(call.code) is None:
            verdict = Verdict("malformed", "malformed", line=0)
    if verdict is None:
        return Observation(call.id, output.text, "ok")
    return Observation(
        call.id, output.text, verdict.status, verdict.error_type, rule=verdict.rule, line=verdict.line
    )  # fmt: skip
