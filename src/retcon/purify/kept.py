"""References of the remaining turns to failures that a splice removes.

The model that wrote these turns had seen the failure. Sentences and comments that refer to it, by `words`, are cut
where whole sentences are left; where they cannot be, the splice is refused. Turns are read from the last to the first,
each only up to the next failure that stays or user's message, as later words may refer to those.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from retcon.core.types import TRAINED, Cut, Observation, Turn
from retcon.purify.failing import has_program, user_follows
from retcon.purify.programs import parse
from retcon.purify.words import (
    Sentence,
    absent,
    bare_words,
    can_cut,
    cut_spans,
    decimals,
    entities,
    exceptions,
    find_comment_references,
    find_references,
    has_name,
    mentions,
    names_of,
    plain,
    relied_on,
    rewrite,
    rewrite_text,
    sentences,
    spans,
    tokens,
    without_comments,
)

Place = Literal["words", "comments", "tail"]
_CELL = re.compile(r"\A\s*Out\[\d+\]:")
_HEADING = re.compile(r"(?:-{20,}\s*)?[\w.]*[ \t]*Traceback \(most recent call last\)")
_TELLING = 5
"""Words of a sentence from which on it is no turn of phrase when it stands twice."""


class Edit(Struct, frozen=True):
    """Edit of a raw turn. words: spans [start, end) to cut from its text before its call. program: its one call's
    program, old and new; None where that stays."""

    turn: int
    words: tuple[tuple[int, int], ...] = ()
    program: tuple[str, str] | None = None


class _Flag(NamedTuple):
    turn: int
    place: Place
    one: Sentence
    fixed: bool
    """Whether nothing may be cut at its place."""

    def covers(self, other: _Flag) -> bool:
        """Whether both are of the same words."""
        return self[:2] == other[:2] and self.one.start < other.one.end and other.one.start < self.one.end


class Objection(NamedTuple):
    """Reason against a splice. rule: of `words.RULES`, or `leans`, `repeated`, `value` or `name`."""

    rule: str
    text: str


class _Index(dict[str, int]):
    """First places of tokens in turns that are folded in backwards. done: how many of these it has."""

    done = 0


class References:
    """References of the remaining turns to what a splice removes."""

    def __init__(self, turns: Sequence[Turn], prompt: str) -> None:
        self.turns = turns
        self._prompt = prompt
        self._flags: list[_Flag] = []
        self._later: list[tuple[int, bool]] = []
        """The turns whose words come later, and whether these are fixed, as in `_Flag`."""
        self._cuts: dict[tuple[int, Place], list[_Flag]] = {}
        self.cut: list[Cut] = []
        self._cut_for: dict[int, list[Cut]] = {}
        self._folded: list[tuple[int, int]] = []
        """The turns that follow, each with the turn whose words it has."""
        self._indexes: dict[str, _Index] = {}
        self._first: dict[str, int] | None = None
        self._together: dict[tuple[int | str, ...], list[int]] = {}
        self._alike: list[list[int]] = []
        """Of each turn those with the same outputs, between the same words of users."""
        self._prose: dict[int, str] = {}
        self._tails: dict[int, str] = {}
        """Of turns that were asked about, their words before the first call, and from it on."""
        self._firsts_of: dict[int, dict[tuple[str, ...], int]] = {}
        """Of such turns, by the first of them, the first with each program."""
        self._ids = any(s.ids is not None for turn in turns for s in turn.segments if s.kind in TRAINED)

    def fold(self, number: int, words: int, *, trouble: bool, stays: bool) -> None:
        """Add turn `number`, which stays, with the words of turn `words`. trouble: whether later words may refer to
        what follows its own. stays: whether it failed and stays, so that nothing in it is cut."""
        if trouble:
            self.reset_references()
        turn = self.turns[number]
        fixed = stays or (self._ids and (_has_ids(turn) or _has_ids(self.turns[words])))
        text = self.prose(words)
        own = [_Flag(words, "words", one, fixed) for one in find_references(text, "later")]
        self._later.append((words, fixed))
        self._folded.append((number, words))
        for call in turn.calls:
            own += [
                _Flag(number, "comments", one, fixed or len(turn.calls) > 1)
                for one in find_comment_references(call.code, "later")
            ]
        own += [_Flag(number, "tail", one, True) for one in find_references(self._tail(number), "later")]
        if own:
            self._flags += [flag for flag in own if not self._is_cut(flag)]

    def _places(self, of: str) -> _Index:
        """First places of the tokens in what follows, by a key of `_READERS`."""
        index = self._indexes.setdefault(of, _Index())
        for number, words in self._folded[index.done :]:
            for found, place in _READERS[of](self, number, words):
                index.update(dict.fromkeys(found, place))
        index.done = len(self._folded)
        return index

    def reset_references(self) -> None:
        """Drop the references so far: all later words may refer to what comes in between."""
        self._flags.clear()
        self._later.clear()

    def objection(self, first: int, stop: int, *, shallow: bool) -> Objection | None:
        """Find why turn `stop` cannot replace turns from `first`; if it can, cut references."""
        wanted = [*self._flags, *self._repeated(first, stop, shallow), *self._own(first, stop, shallow)]
        if (lost := self._lost(first, stop, first if shallow else stop)) is not None:
            return lost
        by_place: dict[tuple[int, Place], list[_Flag]] = {}
        for flag in wanted:
            by_place.setdefault((flag.turn, flag.place), []).append(flag)
        for (turn, place), flags in by_place.items():
            if not self._can_cut(turn, place, [f.one for f in flags]) or any(f.fixed for f in flags):
                one = next((f for f in flags if f.fixed), flags[0])
                return Objection(one.one.rule or "", self._text(one))
        for flag in wanted:
            self._cuts.setdefault((flag.turn, flag.place), []).append(flag)
            self._cut_for.setdefault(first, []).append(Cut(flag.turn, flag.one.rule or "", self._text(flag)))
        self.cut += self._cut_for.get(first, [])
        self._flags.clear()
        return None

    def cut_for(self, first: int) -> list[Cut]:
        """List what was cut for the splice that begins with a turn."""
        return sorted(self._cut_for.get(first, ()))

    def edits(self) -> tuple[Edit, ...]:
        """Return what was cut, by turn."""
        out: list[Edit] = []
        for turn in sorted({turn for turn, _ in self._cuts}):
            program = None
            if comments := self._done(turn, "comments"):
                code = self.turns[turn].calls[0].code
                program = (code, without_comments(code, comments))
            out.append(Edit(turn, tuple(spans(self.prose(turn), self._done(turn, "words"))), program))
        return tuple(out)

    def _done(self, turn: int, place: Place) -> list[Sentence]:
        """Return what has been cut at a place."""
        return [flag.one for flag in self._cuts.get((turn, place), ())]

    def _is_cut(self, flag: _Flag) -> bool:
        """Whether these words have been cut, by whatever rule."""
        return any(flag.covers(other) for other in self._cuts.get((flag.turn, flag.place), ()))

    def _own(self, first: int, stop: int, shallow: bool) -> Iterator[_Flag]:
        """Yield references of the fix to the failure: in comments, after them, and, deep, in its words."""
        turn = self.turns[stop]
        fixed = _has_ids(turn)
        if not shallow:
            yield from (_Flag(stop, "words", one, fixed) for one in find_references(prose(turn), "fix", first="leans"))
        before = "\n".join(call.code for call in self.turns[first].calls)
        for call in turn.calls:
            for one in find_comment_references(call.code, "fix"):
                if call.code[one.start : one.end] not in before:
                    yield _Flag(stop, "comments", one, fixed or len(turn.calls) > 1)
        yield from (_Flag(stop, "tail", one, True) for one in find_references(self._tail(stop), "fix", but="seen"))

    def _repeated(self, first: int, stop: int, shallow: bool) -> Iterator[_Flag]:
        """Yield later sentences that repeat a removed one about the failure."""
        if not self._later:
            return
        words = [prose(turn) for turn in (self.turns[first + 1 : stop + 1] if shallow else self.turns[first:stop])]
        gone = dict.fromkeys(text[one.start : one.end] for text in words for one in find_references(text, "fix"))
        telling_ones = [text for text in gone if len(text.split()) >= _TELLING]
        for turn, fixed in self._later if telling_ones else ():
            text = self.prose(turn)
            for one in sentences(text) if any(telling in text for telling in telling_ones) else ():
                flag = _Flag(turn, "words", replace(one, rule="repeated"), fixed)
                known = self._is_cut(flag) or any(flag.covers(other) for other in self._flags)
                if text[one.start : one.end] in telling_ones and not known:
                    yield flag

    def _lost(self, first: int, stop: int, words: int) -> Objection | None:
        """Find a mentioned name or value that a splice removes."""
        gone = self.turns[first:stop]
        failed = [o for turn in gone for o in turn.observations if o.status != "ok"]
        fix = self.turns[stop]
        own_words, asked = self.prose(words), _asked(fix)
        # Words after the call were written before its output: a result in them is made up.
        if made_up := decimals(self._tail(stop)):
            has = set[str]().union(*map(tokens, _shown(fix)))
            for token in sorted(made_up):
                if not any(seen.startswith(token) for seen in has) and self._new(token, first):
                    return Objection("value", token)
        own, now = mentions(own_words), _named(asked) if asked else set[str]()
        missing = {t for o in failed for t in absent(o.text)}
        results = set[str]().union(*[entities(text) for t in gone for o in t.observations if (text := _result(o))])
        named = relied_on(own_words + _arguments(fix)) if results else set()
        spoken = own or now or missing or results or self._places("mentioned") or self._places("asked")
        if not spoken:
            return None
        values = {t for turn in gone for o in turn.observations for t in tokens(o.text, shortest=4) if t[0].isdigit()}
        names = {t for turn in gone for call in turn.calls for t in tokens(call.code) if not t[0].isdigit()}
        has = set[str]().union(*map(tokens, _shown(fix)))
        if words == first:  # they were written for its program: a number of both that the fix has not is given up
            numbers = {t for call in self.turns[first].calls for t in tokens(call.code) if t[0].isdigit()}
            for token in sorted((own & numbers) - has):
                if self._new(token, first):
                    return Objection("value", token)
        # Users' words stay, whatever they are about.
        raised = {o.error_type.rpartition(".")[2] for o in failed if o.error_type}
        for token in sorted((names | raised) - has):
            if self._missed(token, 2 * stop + 1 if token in now else self._places("asked").get(token), first):
                return Objection("name" if token in names else "exception", token)
        has |= tokens(asked)
        for token in sorted((values | names) - has):
            at = (
                2 * stop if token in own and (token in names or words == stop) else self._places("mentioned").get(token)
            )
            if self._missed(token, at, first):
                return Objection("value" if token in values else "name", token)
        # Entities of a removed result that later words rely on.
        for token in sorted(results - has):
            at = 2 * stop if token in named else self._places("relied on").get(token)
            if self._missed(token, at, first):
                return Objection("value" if token[0].isdigit() else "name", token)
        missing = missing & names - has
        bare = bare_words(own_words if words == first else strip_references(own_words, "fix")) if missing else set()
        for token in sorted(missing):
            if self._missed(token, 2 * stop if token in bare else self._places("bare").get(token), first):
                return Objection("name", token)
        return None

    def named_alone(self, first: int, stop: int) -> str | None:
        """Find a name in a failure's words that only its program has."""
        turn = self.turns[first]
        names = names_of("\n".join(call.code for call in turn.calls), prose(turn))
        if not names:
            return None
        texts = [self._prompt, *(s.text for t in self.turns[:first] for s in t.segments), *_shown(self.turns[stop])]
        return min((name for name in names if not any(has_name(text, name) for text in texts)), default=None)

    def _missed(self, token: str, at: int | None, first: int) -> bool:
        """Whether a token is mentioned at a place and shown nowhere before."""
        return at is not None and self._places("shown").get(token, at) >= at and self._new(token, first)

    def _new(self, token: str, first: int) -> bool:
        """Whether nothing before turn `first` has a token."""
        return self._firsts().get(token, first) >= first

    def known_before(self, number: str, turn: int) -> bool:
        """Whether a number stands before a turn, or in its words."""
        number = plain(number)
        return self._firsts().get(number, turn) < turn or number in tokens(self.prose(turn))

    def done_before(self, stop: int, first: int) -> bool:
        """Whether a fix only repeats a step from before the failure."""
        if not self._alike:
            spoken = 0
            for n, turn in enumerate(self.turns):
                self._alike.append(self._together.setdefault((spoken, *_outputs(turn)), []))
                self._alike[-1].append(n)
                spoken += user_follows(turn)
        alike = self._alike[stop]
        if alike[0] >= first:
            return False
        if alike[0] not in self._firsts_of:
            self._firsts_of[alike[0]] = {_lines(self.turns[n]): n for n in reversed(alike)}
        if self._firsts_of[alike[0]][_lines(self.turns[stop])] >= first:
            return False
        codes = ([call.code for call in self.turns[n].calls] for n in (first, stop))
        return next(codes) != next(codes)

    def _firsts(self) -> dict[str, int]:
        """Return the first turn of each token, -1 for the prompt."""
        if self._first is None:
            self._first = dict.fromkeys(tokens(self._prompt), -1)
            for n, turn in enumerate(self.turns):
                for token in tokens("\n".join(s.text for s in turn.segments)):
                    self._first.setdefault(token, n)
        return self._first

    def prose(self, turn: int) -> str:
        """Return the words of a turn, computed once."""
        if turn not in self._prose:
            self._prose[turn] = prose(self.turns[turn])
        return self._prose[turn]

    def _tail(self, turn: int) -> str:
        """Return the tail of a turn, computed once."""
        if turn not in self._tails:
            self._tails[turn] = _tail(self.turns[turn])
        return self._tails[turn]

    def _can_cut(self, turn: int, place: Place, cuts: list[Sentence]) -> bool:
        cuts = [*self._done(turn, place), *cuts]
        if place == "words":
            return can_cut(self.prose(turn), cuts)
        if place == "tail":
            return False
        call, text = self.turns[turn].calls[0], self.turns[turn].text
        # Of programs that were put together of several blocks, or are a shell's, no comment can be cut.
        whole = rewrite_text(text, call.code, "") != text and call.language != "shell"
        tree, other = parse(call.code), parse(without_comments(call.code, cuts))
        return whole and tree is not None and other is not None and ast.dump(tree) == ast.dump(other)

    def _text(self, flag: _Flag) -> str:
        turn = self.turns[flag.turn]
        text = {"words": prose, "tail": _tail}.get(flag.place, lambda t: t.calls[0].code)(turn)
        return text[flag.one.start : flag.one.end]


_READERS: dict[str, Callable[[References, int, int], Iterable[tuple[Iterable[str], int]]]] = {
    "mentioned": lambda kept, n, words: [(mentions(kept.prose(words)), 2 * n)],
    "bare": lambda kept, n, words: [(bare_words(strip_references(kept.prose(words), "later")), 2 * n)],
    "relied on": lambda kept, n, words: [(relied_on(kept.prose(words) + _arguments(kept.turns[n])), 2 * n)],
    "asked": lambda kept, n, _: [(_named(asked), 2 * n + 1)] if (asked := _asked(kept.turns[n])) else [],
    "shown": lambda kept, n, _: [
        (tokens(_asked(kept.turns[n])), 2 * n + 1),
        *((tokens(one), 2 * n) for one in _shown(kept.turns[n])),
    ],
}
"""How the tokens are found that a turn speaks of in its words, as names and numbers, as words that may be names, or as
entities; those that a user asks for after it; and those that an output, a program or a user tells of. Each is given the
turn's number and that of the turn whose words it has; the first place comes last."""


def prose(turn: Turn) -> str:
    """Return a turn's text before its first call."""
    return turn.text[: turn.calls[0].char] if turn.calls else turn.text


def strip_references(text: str, place: Literal["fix", "later"]) -> str:
    """Remove sentences that refer to a failure."""
    return cut_spans(text, [(one.start, one.end) for one in find_references(text, place)])


def apply_edits(turn: Turn, words: Edit | None, program: Edit | None) -> Turn:
    """Apply edits of words and of the program to a turn."""
    length = sum(end - start for start, end in words.words) if words else 0
    segments = list(turn.segments)
    if words and words.words:
        at, rest = 0, list(words.words)
        for n, segment in enumerate(segments):
            if segment.kind not in ("sampled", "spliced"):
                continue
            end = at + len(segment.text)
            inside = [(max(s, at) - at, min(e, end) - at) for s, e in rest if s < end and e > at]
            segments[n] = replace(segment, text=cut_spans(segment.text, inside))
            at = end
    calls = tuple(replace(call, char=call.char - length) for call in turn.calls)
    if program and program.program:
        old, new = program.program
        segments = [
            replace(s, text=rewrite_text(s.text, old, new)) if s.kind in ("sampled", "spliced") else s for s in segments
        ]
        arguments = rewrite(calls[0].arguments, old, new)
        calls = (replace(calls[0], arguments=arguments), *calls[1:])
    return replace(turn, segments=tuple(s for s in segments if s.text or s.ids), calls=calls)


def _tail(turn: Turn) -> str:
    """Return a turn's text after its first call, without programs. Calls in JSON have no text beside them."""
    if not turn.calls:
        return ""
    text = turn.text[turn.calls[0].char :]
    codes = [call.code for call in turn.calls]
    if all(code and code in text for code in codes):
        for code in codes:
            text = text.replace(code, "\n", 1)
        return text
    lines = {line for code in codes for line in code.split("\n")}
    found = text.split("\n")
    return "\n".join(line for line in found if line not in lines) if not lines.isdisjoint(found[1:]) else ""


def _outputs(turn: Turn) -> list[str]:
    """Return a turn's outputs, without the numbers of cells."""
    return [_CELL.sub("", o.text) if "Out[" in o.text else o.text for o in turn.observations]


def _lines(turn: Turn) -> tuple[str, ...]:
    """Return the programs of a turn without comments."""
    lines = [line.partition("#")[0].rstrip() for call in turn.calls for line in call.code.split("\n")]
    return tuple(filter(None, lines))


def _shown(turn: Turn) -> Iterable[str]:
    """Iterate over a turn's outputs and programs."""
    return chain((s.text for s in turn.segments if s.kind == "observation"), (call.code for call in turn.calls))


def _arguments(turn: Turn) -> str:
    """Return the arguments of a turn's calls without a program."""
    given = [call.arguments for call in turn.calls if not call.malformed and not has_program(call)]
    return "".join(f"\n{json.dumps(arguments, default=str, ensure_ascii=False)}" for arguments in given)


def _result(observation: Observation) -> str:
    """Return an output without the traceback that ends it."""
    if observation.rule in ("syntax", "exception-line", "exception-repr", "frames"):
        return ""
    text = observation.text
    return _HEADING.split(text, maxsplit=1)[0] if "Traceback" in text else text


def _asked(turn: Turn) -> str:
    """Return the user's words after a turn."""
    asked = [s.text for s in turn.segments if s.kind == "prompt"]
    return "\n".join(asked) if asked else ""


def _named(asked: str) -> set[str]:
    """Find names in a user's words that only programs show."""
    return exceptions(asked) | {token for token in mentions(asked) if not token[0].isdigit()}


def _has_ids(turn: Turn) -> bool:
    return any(s.ids is not None for s in turn.segments if s.kind in TRAINED)
