"""Errors, named after the boundary crossed; each says what, where and what to do.

    RetconError
    ├── RecipeError             a recipe, an override or a task set is wrong
    ├── RecordError             a stored record cannot be read
    ├── StorageError            a file or folder cannot be written
    ├── CheckpointError         a checkpoint, model or run folder is absent, broken or another one
    ├── MissingExtra            an optional package is not installed
    ├── MissingIds              token ids were asked for of text
    ├── UnscoredTokens          a sample has tokens to learn without a log-prob
    ├── TrainingDiverged        a loss or gradient is no longer finite
    ├── EngineError             an engine refuses a request
    ├── InfrastructureFault     a rollout cannot go on, through no fault of the model
    ├── SessionLost             a sandbox session is gone
    └── SandboxUnavailable      the sandbox cannot be started or reached
        ├── SandboxBusy         no worker was free in time
        └── CheckpointRefused   a session keeps too many checkpoints

Warnings: SandboxWarning, ComputeWarning, TaskWarning, RateWarning, TrackingWarning, DriftWarning, IdleWarning, all
of UserWarning.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class RetconError(Exception):
    """Base of every error that Retcon raises on purpose."""


class Interrupted(Exception):
    """The user pressed Ctrl-C; the message says what is kept and how to continue."""


class RecordError(RetconError):
    """A stored record cannot be read or written: names file, line and field."""


class RecipeError(RetconError):
    """A wrong recipe or override: names file, line, key and the nearest valid key."""


class UnscoredTokens(RetconError):
    """A requested sample has tokens in its loss mask without a log-prob."""


class MissingIds(RetconError):
    """The token ids of a text-only trajectory were requested."""


class CheckpointError(RetconError):
    """A checkpoint or run folder is missing, broken, or does not match."""


class StorageError(RetconError):
    """A file could not be written: names it, the reason and the free space. What was there before is whole."""


class TrainingDiverged(RetconError):
    """A loss or gradient is no longer finite; the last checkpoint is whole."""


class SandboxUnavailable(RetconError):
    """The sandbox cannot be started or reached."""


class SandboxBusy(SandboxUnavailable):
    """A call could not start in time: neither it nor the sandbox is at fault."""


class SandboxWarning(UserWarning):
    """The requested sandbox contains programs only in part: names what is open."""


class ComputeWarning(UserWarning):
    """A recipe will be slow or inexact here: names keys and better values."""


class TaskWarning(UserWarning):
    """Unusable tasks of a set: how many, why, and which key to change."""


class RateWarning(UserWarning):
    """A learning rate far too high for the model's size: names key and value."""


class TrackingWarning(UserWarning):
    """A tracker misses metrics of a run, which goes on: names tracker and reason."""


class DriftWarning(UserWarning):
    """A training degrades with a finite loss, and goes on: names the risen metric and its values."""


class IdleWarning(UserWarning):
    """A training learns from too few groups, and goes on: says how many and what to do."""


class CheckpointRefused(SandboxUnavailable):
    """The state of a tool or session cannot be checkpointed: too many, or its own code prevents it.

    It goes on as it was, and cannot be rolled back to this state. full: there are too many checkpoints, or too large
    ones: another state would have been refused as well.
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class SessionLost(RetconError):
    """A lost sandbox session: ended by its own code, evicted, or its worker died.

    by_own_code: its code ended it, so that the sandbox is not at fault.
    """

    def __init__(self, message: str, *, by_own_code: bool = False) -> None:
        super().__init__(message)
        self.by_own_code = by_own_code


class EngineError(RetconError):
    """An engine cannot serve a request: it exceeds the context, say."""


class InfrastructureFault(RetconError):
    """A failed engine or tool, not the model, ended a rollout: it gets no reward."""


class MissingExtra(RetconError):
    """A required package is missing: names the extra to install."""


def as_record_error(error: RetconError, where: str) -> RecordError:
    """Return the error as a RecordError that begins with `where`."""
    if isinstance(error, RecordError) and str(error).startswith(where):
        return error
    return RecordError(f"{where}: {error}")


LONGEST_NAME = 200
"""Longest name that `nearest` compares: a longer one is not a typo, and difflib would take minutes."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest a valid name close to `name`: ` (did you mean 'x'?)`, or ""."""
    valid = list(valid)
    if len(name) > LONGEST_NAME:
        return ""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    close = close or [one for one in valid if one.casefold() == name.casefold()]
    return f" (did you mean '{close[0]}'?)" if close else ""


def nearest_path(path: Path, suffixes: Collection[str] = ()) -> str:
    """Suggest a similar path as ` (did you mean 'x'?)`, or "".

    Only files with one of these suffixes, or the path's own, are compared; folders where both are empty.
    """
    wanted = set(suffixes or path.suffixes[-1:])
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    meant = [p.name for p in beside if not p.name.startswith(".")
             and (wanted.intersection(p.suffixes) if wanted else p.is_dir())]  # fmt: skip
    stems = {name.partition(".")[0]: name for name in sorted(meant, reverse=True)}
    close = difflib.get_close_matches(path.name.partition(".")[0].lower(), [*stems], n=1, cutoff=0.6)
    return (
        f" (did you mean '{stems[close[0]]}'?)"
        if close
        else nearest(path.name, [name for name in meant if name.casefold() == path.name.casefold()])
    )


def format_user_error(error: BaseException) -> str:
    """Format an exception from user code with its file and line: `KeyError: 'x' (/home/me/mine.py:8)`. The line is the
    last outside Retcon and importlib; left out where no line is, or where the error is a SyntaxError, which has it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [f" ({file}:{line})" for file, line in lines if not file.startswith((_OURS, "<"))]
    return text + theirs[-1] if theirs and not isinstance(error, SyntaxError) else text


@contextmanager
def reraise_as(error_type: Callable[[str], RetconError], source: str) -> Iterator[None]:
    """Reraise exceptions of user code, SystemExit too, as `error_type`: "`source` raised …". Errors of Retcon pass
    through."""
    try:
        yield
    except RetconError:
        raise
    except (Exception, SystemExit) as error:
        raise error_type(f"{source} raised {format_user_error(error)}") from error


_OURS = str(Path(__file__).parents[1])
