"""What the turns that stay need of a session, and what of that only turns that go have left there."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal

from retcon.core.types import Observation, ToolCall, Turn
from retcon.purify.fixes import line_of
from retcon.purify.noop import is_program
from retcon.purify.reading.names import bound_before, effects
from retcon.purify.reading.reads import needs, reads
from retcon.purify.reading.trees import parse
from retcon.purify.tools import has_program, is_lookup

_GIVEN = frozenset({*dir(builtins), "display", "get_ipython", "In", "Out", "exit", "quit", "__file__"})
"""Names that a session has of its own."""
_STAR = re.compile(r"\bimport[\s\\]*\*")
"""What programs have that import all names of a module."""


class SessionState:
    """Of a trajectory's turns those that stay, folded in from the last to the first."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._needed: dict[str, bool] = {}
        """Of each name in what follows whether it is read before it is bound; but for `_unread`."""
        self._unread: list[Turn] = []
        """Turns that follow, from the last to the first, whose programs nobody has asked for yet."""
        self._open: set[str] = set()
        """Names that calls which worked read, and that nothing between has bound or may have, by a star import."""
        self._latest: list[tuple[int, str]] = []
        """These names and others, those that are bound last first: a heap."""
        self._imported: dict[tuple[str, str], int] | None = None
        self._bound: dict[str, int] | None = None
        self._starred = any(
            "*" in call.code and _STAR.search(call.code) is not None for turn in turns for call in turn.calls
        )

    def fold(self, turn: Turn) -> None:
        """Take in that a turn stays."""
        self._unread.append(turn)

    def lost(self, at: int, stop: int) -> tuple[Literal["state", "effects"], str] | None:
        """What of the turns `at` to `stop` (without it) is needed in the end, and would be gone. All that follows
        `stop` has been folded in, and nothing before it."""
        lost: set[str] = set()
        imported: set[tuple[str, str]] = set()
        stars: set[str] = set()
        outside: set[str] = set()
        for turn in self._turns[at:stop]:
            for call, observation in zip(turn.calls, turn.observations, strict=True):
                if call.language == "shell" and _may_have_acted(call, observation):
                    return "effects", "a shell command"
                if not is_program(call):
                    continue
                left = effects(call.code, line_of(observation))
                imported |= left.imported
                stars |= left.stars
                lost |= (left.defined - {name for name, _ in left.imported}) | left.changed
                outside |= left.outside
        for call in self._turns[stop].calls if outside else ():
            outside -= effects(call.code).outside
        if outside:
            return "effects", min(outside)
        needed = self._needed_of(stop, lost)
        # An import that stands earlier too gives the same names again.
        if by_import := self._needed_of(stop, {name for name, _ in imported}):
            anew = {name for name, text in imported if self._imports().get((name, text), at) >= at}
            needed |= by_import & anew
        modules = {module for module in stars if self._imports().get(("*", module), at) >= at}
        if needed:
            return "state", ", ".join(sorted(needed))
        if modules and (name := self._given_by_none(at, stop)) is not None:
            return "state", f"{name}, of `from {min(modules)} import *`"
        return None

    def _needed_of(self, stop: int, names: set[str]) -> set[str]:
        """Those of the names that turn `stop`, or what follows it, reads before it binds them."""
        needed: set[str] = set()
        for call, _ in _answered(self._turns[stop]) if names else ():
            needed |= needs(call.code, frozenset(names))
            names = names - effects(call.code).defined
        if names:  # most often the fix binds all of them anew, and nothing that follows has to be parsed
            self._read()
        return needed | {name for name in names if self._needed.get(name)}

    def _read(self) -> None:
        for turn in self._unread:
            for call, observation in reversed(_answered(turn)):
                self._needed.update(dict.fromkeys(_surely_bound(call, observation), False))
                self._needed.update(dict.fromkeys(reads(call.code), True))
                if self._starred:
                    self._read_open(call, observation)
        self._unread.clear()

    def _read_open(self, call: ToolCall, observation: Observation) -> None:
        left = effects(call.code, line_of(observation))
        self._open -= left.defined
        if left.stars:
            self._open.clear()
        elif observation.status == "ok":
            for name in _reads_surely(call.code) - self._open:
                self._open.add(name)
                heappush(self._latest, (-self._first(name), name))

    def _given_by_none(self, at: int, stop: int) -> str | None:
        """A name that turn `stop`, or what follows it, reads though nothing that stays has bound it; None too where
        the turn imports all names of another module, of which it may be."""
        own: set[str] = set()
        for call, _ in _answered(self._turns[stop]):
            left = effects(call.code)
            if left.stars:
                return None
            if unknown := {name for name in _reads_surely(call.code) - own if self._first(name) >= at}:
                return min(unknown)
            own |= left.defined
        self._read()
        while self._latest and (self._latest[0][1] in own or self._latest[0][1] not in self._open):
            heappop(self._latest)  # of what is its own none is open once it has been taken in
        minus, name = self._latest[0] if self._latest else (0, "")
        return name if name and -minus >= at else None

    def _imports(self) -> dict[tuple[str, str], int]:
        """Where each import was made first by a call that worked; of `from m import *` under ("*", "m")."""
        if self._imported is None:
            self._imported = {}
            for n, turn in enumerate(self._turns):
                for call, observation in _answered(turn):
                    if observation.status == "ok" and "import" in call.code:
                        left = effects(call.code)
                        for pair in left.imported | {("*", module) for module in left.stars}:
                            self._imported.setdefault(pair, n)
        return self._imported

    def _first(self, name: str) -> int:
        """The turn that bound a name first; one beyond the last where none did."""
        if self._bound is None:
            self._bound = {}
            for n, turn in enumerate(self._turns):
                for call, observation in _answered(turn):
                    for one in effects(call.code, line_of(observation)).defined:
                        self._bound.setdefault(one, n)
        return self._bound.get(name, len(self._turns))


def _may_have_acted(call: ToolCall, observation: Observation) -> bool:
    """Whether a call of a shell or an editor may have done something: an editor's does not where it only shows, or says
    that it did nothing but fail."""
    edits = not call.malformed and not has_program(call)
    return not (edits and (is_lookup(call) or observation.rule in ("editor", "error")))


def _reads_surely(code: str) -> frozenset[str]:
    """What a program reads of what others have bound; nothing of one that cannot be parsed, of which all words might
    be names."""
    return reads(code) - _GIVEN if parse(code) is not None else frozenset()


def _answered(turn: Turn) -> list[tuple[ToolCall, Observation]]:
    """The programs of a turn that were run, each with its output."""
    return [(c, o) for c, o in zip(turn.calls, turn.observations, strict=False) if is_program(c)]


def _surely_bound(call: ToolCall, observation: Observation) -> frozenset[str]:
    """The names that a program has bound for all that is known: nothing, where it failed nobody knows where."""
    if observation.status == "ok":
        return effects(call.code).defined
    line = line_of(observation)
    return frozenset() if line is None else bound_before(call.code, line)
