"""Registry of graders: each is a file of `tasks/graders` with a `GRADER`.

A user's function is named by its import path, `my_package.my_module:my_grade` (`graders/function.py`).
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
    """A grader gives scores outside 0 to 1. It may do so for some replies only, such as the right ones: without their
    rollouts the others would mean something else, so the work ends."""


_ROUNDING = 1e-6
"""Excess over 0 or 1 that a sum of shares may have by rounding, in 32-bit floats too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Score of a reply. Raises ScoreError for one outside [0, 1], beyond rounding, and ValueError for inf and nan.

    score: how good the answer is. right: whether it counts as right. why: a short phrase for people. answer: the
    answer that the grader found, or None. grades: verdict of each judge, of a grader that asks several
    (`livecodebench`: `lcb`, `strict`).
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
        """Make a verdict of score 1 or 0."""
        return cls(float(right), right, why, answer)


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure to grade: a grader raised, hung, took too much memory or was unreachable. Never a reward. why: for
    people."""

    why: str


Outcome = Verdict | Fault


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to grade. text: the model's last turn. trajectory: the whole rollout, where there is one."""

    text: str
    trajectory: Trajectory | None = None


class Grader(Protocol):
    """Grader of many replies at once, with limits of time and memory."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        """Grade a reply. Raises InfrastructureFault where it fails, ValueError for a task without what it needs,
        ScoreError for a score outside 0 to 1."""
        ...

    async def check(self, task: Task) -> None:
        """Raise ValueError, naming the task, where no reply can be graded."""
        ...

    async def close(self) -> None:
        """End what it started; closing twice is allowed."""
        ...


class Host(Protocol):
    """Services for a grader that is being opened."""

    async def sandbox(self) -> Sandbox:
        """Return the shared sandbox, started. Raises SandboxUnavailable."""
        ...

    async def grader(self, name: str) -> Grader:
        """Return another grader, open with its own settings. Raises RecipeError for an unknown one."""
        ...


Options = Mapping[str, Mapping[str, object]]
"""Settings of graders, by name; those of `function` are for all import paths."""
FUNCTION = "function"
"""The grader that calls the function of an import path."""
_SOME_PATH = "my_package.my_module:my_grade"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of grader: its settings and its functions.

    settings: a frozen dataclass with working defaults; its fields are described (`Annotated`, pydantic's `Field`).
    open: makes the grader from settings and host. packages: for the sandbox to preload (`SandboxPool(packages=…)`).
    unreadable: maps right answers that it cannot use to the reason. read: raises ValueError for such an answer, or
    such tests in a task's `meta`, as far as nothing has to run for it. in_words: whether it misreads a right answer in
    words. ambiguous: how it reads an ambiguous right answer, "" for others. ready: raises RetconError where the grader
    of these settings is unavailable here, before anything is started. asks: the graders that these settings ask.
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
    """Return all graders by name, in alphabetical order."""
    return {kind.name: kind for kind in sorted(GRADERS.all(), key=lambda kind: kind.name)}


def kind_of(name: str) -> Kind:
    """Return the grader of a name or import path; a function's path gives `function`.

    Raises RecipeError with the nearest name. A wrong path is refused by `ready`.
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
    """Build the settings of grader `name` from the given keys. Raises RecipeError, which names the key."""
    kind = kind_of(name)
    return read_settings(kind.settings, {"path": name, **given} if kind.name == FUNCTION else given, f"grader {name}")


def needed_settings(name: str) -> tuple[str, ...]:
    """Return the settings of grader `name` without a default. Raises RecipeError."""
    settings = kind_of(name).settings
    return tuple(f.name for f in fields(settings) if f.default is MISSING and f.default_factory is MISSING)


def options_of(name: str, options: Options) -> Mapping[str, object]:
    """Return the given settings of grader `name`: its own, or `function`'s for an import path."""
    return options.get(name, options.get(FUNCTION, {}) if kind_of(name).name == FUNCTION else {})


def check_options(options: Options) -> None:
    """Raise RecipeError for unknown graders, unknown keys and wrong values.

    Those of import paths are checked when the grader is made ready: a stored recipe is read without its modules.
    """
    for name, given in options.items():
        if name == FUNCTION:
            read_settings(kinds()[FUNCTION].settings, {"path": _SOME_PATH, **given}, f"grader {FUNCTION}")
        elif ":" not in name:
            settings_for(name, given)


def check_grader(name: str, options: Options, given_in: str) -> None:
    """Raise RetconError where a grader, or one that it asks, is unavailable: it is unknown, lacks a setting without a
    default, or its `Kind.ready` raises. given_in: the key with the options, for the error."""
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
    """Build an instance of a settings dataclass. Raises RecipeError, which begins with `where` and names the key."""
    known = [f.name for f in fields(settings)]
    for key in given:
        if key not in known:
            raise RecipeError(f"{where}: no key '{key}'{nearest(key, known)}; there are: {', '.join(known) or 'none'}")
    try:
        return TypeAdapter(settings).validate_python(dict(given))
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']} (it is {one['input']!r:.80})"
            for one in error.errors()
        )
        raise RecipeError(f"{where}: {reasons}") from None
