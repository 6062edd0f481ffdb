"""Graders by name. Each is a file of `tasks/graders` with a `GRADER`; no list of them stands anywhere.

A user's own function is named by where it stands, `my_package.my_module:my_grade` (`graders/function.py`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from retcon.core.errors import RecipeError, nearest
from retcon.core.registry import InstanceRegistry
from retcon.core.types import Trajectory
from retcon.sandbox.types import Sandbox
from retcon.tasks.types import Task


class ScoreError(RecipeError, ValueError):
    """A grader counts in other numbers than from 0 to 1. It does so of some replies only, such as the right ones:
    without their rollouts the others would say something else, so the work ends."""


_ROUNDING = 1e-6
"""How far beyond 0 or 1 a sum of shares may come by rounding, in 32-bit floats too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader found. Raises ScoreError for a score outside of [0, 1], but by rounding, ValueError for one that is
    no number.

    score: how good the answer is. right: whether it counts as right. why: a short phrase for people. answer: what the
    grader took for the answer, None where it found none. grades: whether it is right to each judge, of a grader that
    asks several (`livecodebench`: `lcb`, `strict`).
    """

    score: float
    right: bool
    why: str = ""
    answer: str | None = None
    grades: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            if not -_ROUNDING <= self.score <= 1.0 + _ROUNDING:
                error = ScoreError if math.isfinite(self.score) else ValueError
                raise error(f"a score of {self.score:.9g}: it must be within [0, 1]")
            object.__setattr__(self, "score", min(max(self.score, 0.0), 1.0))

    @classmethod
    def of(cls, right: bool, why: str = "", answer: str | None = None) -> Verdict:
        """Right or wrong, and nothing between."""
        return cls(float(right), right, why, answer)


@dataclass(frozen=True, slots=True)
class Fault:
    """Nobody can tell whether the answer is right: a grader raised, hung, took too much memory or could not be
    reached. Never a reward. why: for people."""

    why: str


Outcome = Verdict | Fault


@dataclass(frozen=True, slots=True)
class Reply:
    """What is graded. text: all that the model said in its last turn. trajectory: the whole rollout, where there is
    one."""

    text: str
    trajectory: Trajectory | None = None


class Grader(Protocol):
    """Scores replies, many at a time. It keeps limits of time and memory of its own."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        """Raises InfrastructureFault where it cannot tell, ValueError where the task holds nothing that it can grade
        by, ScoreError where it counts otherwise."""
        ...

    async def check(self, task: Task) -> None:
        """Raises ValueError, naming the task, where `grade` could not grade any reply to it."""
        ...

    async def close(self) -> None:
        """End what it started. Closing twice is no error."""
        ...


class Host(Protocol):
    """What a grader may ask for while it is opened."""

    async def sandbox(self) -> Sandbox:
        """The sandbox that all graders share, started. Raises SandboxUnavailable."""
        ...

    async def grader(self, name: str) -> Grader:
        """Another grader, opened with its own settings. Raises RecipeError for one that is unknown."""
        ...


Options = Mapping[str, Mapping[str, object]]
"""Settings of graders, by name; those of `function` are for all import paths."""
FUNCTION = "function"
"""The grader that calls what an import path names."""
_SOME_PATH = "my_package.my_module:my_grade"


@dataclass(frozen=True, slots=True)
class Kind:
    """A way of grading.

    settings: a frozen dataclass whose defaults will do; its fields are described (`Annotated`, pydantic's `Field`).
    open: makes the grader, of settings and host. packages: that the sandbox does well to preload
    (`SandboxPool(packages=…)`). unreadable: of right answers, those that it could compare nothing with, and why.
    read: raises ValueError for such an answer, or for such tests in a task's `meta`, where that takes nothing to be
    run. in_words: whether a right answer is
    in words that it takes for something else. ambiguous: how it reads a right answer that may mean something else, ""
    for others. ready: raises RetconError where the grader of these settings cannot be
    had here, before anything is made ready for it. asks: the graders that one of these settings asks.
    """

    name: str
    settings: type
    open: Callable[[Any, Host], Awaitable[Grader]]
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unreadable: Callable[[Sequence[str]], Mapping[str, str]] | None = None
    in_words: Callable[[str], bool] | None = None
    ambiguous: Callable[[str], str] | None = None
    ready: Callable[[Any], None] | None = None
    read: Callable[[str, Mapping[str, object]], object] | None = None
    asks: Callable[[Any], Iterable[str]] | None = None
    uses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.settings, type) and is_dataclass(self.settings)):
            raise TypeError(
                f"grader {self.name}: settings must be a dataclass with a field for each setting, not "
                f"{self.settings!r}; without settings write an empty dataclass"
            )


GRADERS = InstanceRegistry("grader", own="my_grade", base=Kind)


def kinds() -> Mapping[str, Kind]:
    """All graders by name, in alphabetical order."""
    return {kind.name: kind for kind in sorted(GRADERS.all(), key=lambda kind: kind.name)}


def kind_of(name: str) -> Kind:
    """Return the grader of a name or import path; any path but a `Kind`'s gives the grader that calls functions.

    Raises RecipeError with the nearest name. A path that leads nowhere is refused once the grader is made `ready`.
    """
    if name == FUNCTION:
        raise RecipeError(f"grader {FUNCTION}: give the function's import path instead, such as {_SOME_PATH}")
    if ":" not in name:
        return GRADERS.find(name)
    try:
        found = GRADERS.load(name)
    except RecipeError:
        found = None
    return found if isinstance(found, Kind) else GRADERS.find(FUNCTION)


def settings_for(name: str, given: Mapping[str, object]) -> Any:
    """The settings of grader `name`, from the keys that are given. Raises RecipeError, which names the key."""
    kind = kind_of(name)
    return read_settings(kind.settings, {"path": name, **given} if kind.name == FUNCTION else given, f"grader {name}")


def needed_settings(name: str) -> tuple[str, ...]:
    """The settings of grader `name` that have no default. Raises RecipeError."""
    settings = kind_of(name).settings
    return tuple(f.name for f in fields(settings) if f.default is MISSING and f.default_factory is MISSING)


def options_of(name: str, options: Options) -> Mapping[str, object]:
    """The settings that are given for grader `name`: its own, or of an import path those of `function`."""
    return options.get(name, options.get(FUNCTION, {}) if kind_of(name).name == FUNCTION else {})


def refuse_unknown_options(options: Options) -> None:
    """Raises RecipeError for settings of unknown graders, and for unknown keys and wrong values.

    Those of import paths are checked when the grader is made ready: a stored recipe is read without its modules.
    """
    for name, given in options.items():
        if name == FUNCTION:
            read_settings(kinds()[FUNCTION].settings, {"path": _SOME_PATH, **given}, f"grader {FUNCTION}")
        elif ":" not in name:
            settings_for(name, given)


def check_grader(name: str, options: Options, given_in: str) -> None:
    """Raises RetconError where grader `name`, or one that it asks, cannot be had here with its settings: it is unknown,
    or a setting lacks that has no default, or as its `Kind.ready`. given_in: the key with the options, for the
    message."""
    kind = kind_of(name)
    try:
        settings = settings_for(name, options_of(name, options))
    except RecipeError as error:
        raise RecipeError(f"{error}: its settings belong in {given_in} = {{ {name} = {{ … }} }}") from None
    if kind.ready is not None:
        kind.ready(settings)
    for asked in kind.asks(settings) if kind.asks is not None else ():
        check_grader(asked, options, given_in)


def read_settings(settings: type, given: Mapping[str, object], where: str) -> Any:
    """An instance of a settings dataclass. Raises RecipeError, which begins with `where` and names the key."""
    known = [f.name for f in fields(settings)]
    for key in given:
        if key not in known:
            raise RecipeError(f"{where}: no key '{key}'{nearest(key, known)}; there are: {', '.join(known) or 'none'}")
    try:
        return TypeAdapter(settings).validate_python(dict(given))
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']} (it is {one['input']!r:.80})"
            for one in error.errors()
        )
        raise RecipeError(f"{where}: {said}") from None
