"""Errors, each named after the boundary that was crossed. All say what was wrong, where, and what to do.

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
    """A stored record cannot be read, or not be written as it is: names the file, the line and the field."""


class RecipeError(RetconError):
    """A recipe or an override is wrong: names the file, the line, the key and the nearest valid key."""


class UnscoredTokens(RetconError):
    """A sample was asked for while tokens in its loss mask have no log-prob."""


class MissingIds(RetconError):
    """Ids were asked for of a trajectory that holds text only."""


class CheckpointError(RetconError):
    """A checkpoint or run folder is absent, broken, or of another version, recipe or model."""


class StorageError(RetconError):
    """A file or folder could not be written: names it, why, and the free space. What was there before is whole."""


class TrainingDiverged(RetconError):
    """A loss or gradient is no longer finite; the last checkpoint is whole."""


class SandboxUnavailable(RetconError):
    """The sandbox cannot be started or reached."""


class SandboxBusy(SandboxUnavailable):
    """A call could not start within the time that it was to wait: nothing is wrong with it, nor with the sandbox."""


class SandboxWarning(UserWarning):
    """The sandbox that was asked for does not contain what runs in it: says what is open to it."""


class ComputeWarning(UserWarning):
    """A recipe computes in a way that will be slow or inexact here: names the keys and what to set."""


class TaskWarning(UserWarning):
    """Tasks of a set cannot be used: says how many, why, and which key to change."""


class RateWarning(UserWarning):
    """A learning rate is far above what models of this size are trained with: names the key, and what to set."""


class TrackingWarning(UserWarning):
    """A tracker gets a run's metrics no longer, or not all of them: says which, and why. The run goes on."""


class DriftWarning(UserWarning):
    """A training goes the wrong way though its loss is finite: says what has risen, from what to what. It goes on."""


class IdleWarning(UserWarning):
    """A training has next to nothing to learn from: says of how many groups, and what to do. It goes on."""


class CheckpointRefused(SandboxUnavailable):
    """A tool's or session's state cannot be kept: too many checkpoints, or what its own code left there.

    It goes on as it was, and cannot be taken back to this state. full: there are too many checkpoints, or too large
    ones: another state would have been refused as well.
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class SessionLost(RetconError):
    """A sandbox session is gone: says whether its own code ended it, the sandbox evicted it, or its worker died.

    by_own_code: the first of these, which is no fault of the sandbox.
    """

    def __init__(self, message: str, *, by_own_code: bool = False) -> None:
        super().__init__(message)
        self.by_own_code = by_own_code


class EngineError(RetconError):
    """A request that an engine cannot serve, such as one longer than the model's window."""


class InfrastructureFault(RetconError):
    """An engine or a tool is gone, through no fault of the model: the rollout cannot go on and is worth no reward."""


class MissingExtra(RetconError):
    """A part of Retcon needs a package that is not installed: names the extra to install."""


def located(error: RetconError, where: str) -> RecordError:
    """The error as one of a record, with a message that begins with `where`, such as a file and line; itself where it
    is that already."""
    if isinstance(error, RecordError) and str(error).startswith(where):
        return error
    return RecordError(f"{where}: {error}")


LONGEST_NAME = 200
"""Characters of a name that `nearest` looks at: a longer one is no typing error, and difflib would take minutes."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where some valid name is close to `name`, else an empty string."""
    valid = list(valid)
    if len(name) > LONGEST_NAME:
        return ""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    close = close or [one for one in valid if one.casefold() == name.casefold()]
    return f" (did you mean '{close[0]}'?)" if close else ""


def nearest_path(path: Path, suffixes: Collection[str] = ()) -> str:
    """` (did you mean 'x'?)` where a file beside `path` has one of these suffixes, or its own, and a like name.

    Where both are empty, folders are looked at. The suffix is left out of the comparison: what is alike in it alone was
    not meant.
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


def raised(error: BaseException) -> str:
    """What somebody else's code raised, and the line that it came from: `KeyError: 'x' (/home/me/mine.py:8)`. The line
    is the last that is not ours nor Python's own way to a module; empty where there is none, or the error names it."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [f" ({file}:{line})" for file, line in lines if not file.startswith((_OURS, "<"))]
    return said + theirs[-1] if theirs and not isinstance(error, SyntaxError) else said


@contextmanager
def told_as(kind: Callable[[str], RetconError], what: str) -> Iterator[None]:
    """Around somebody else's code: whatever it raises, an exit too, becomes an error of this kind, which says what
    raised it; errors of Retcon's stay as they are."""
    try:
        yield
    except RetconError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{what} raised {raised(error)}") from error


_OURS = str(Path(__file__).parents[1])
