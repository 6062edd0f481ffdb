"""A process that calls a user's grading function, so that it can be ended: `python -m retcon.tasks.grading.worker`.

It reads lines of JSON from where standard input came and writes lines of JSON to where standard output went; what the
function prints goes to standard error, and it, and the programs that it starts, have nothing to read. First line in:
{"path", "memory_mb"}; out: {"wants": names of the parameters that it takes, or null for all} or {"error"}. Then for
each line of arguments {"score", "right", "why"}, {"error"}, or {"score_error"} where it counts in other numbers. It
ends with its parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from retcon.core.codec import from_dict
from retcon.core.errors import format_user_error
from retcon.core.registry import import_object
from retcon.tasks.grading.registry import ScoreError, Verdict

PR_SET_PDEATHSIG = 1
KNOWN = (
    *("answer", "reply", "question", "task", "meta", "trajectory"),
    *("solution_str", "ground_truth", "data_source", "extra_info"),
)
"""What a function may ask for."""


def main() -> None:
    """Serve until standard input ends."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a program that reads would wait for the next question, and take it
    os.close(nothing)
    if sys.platform == "linux":  # a function that hangs does not see that standard input ended
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    first = json.loads(asked.readline())
    try:
        function = import_object(first["path"])
        _say(answers, {"wants": wanted(function)})
    except BaseException as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        _say(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _limit_memory(first["memory_mb"])
    for line in asked:
        try:
            given = json.loads(line)
            if "trajectory" in given:
                given["trajectory"] = from_dict(given["trajectory"], "trajectory")
            said = function(**given)
            verdict = read_verdict(asyncio.run(_awaited(said)) if inspect.isawaitable(said) else said)
            _say(answers, {"score": verdict.score, "right": verdict.right, "why": verdict.why})
        except ScoreError as error:
            _say(answers, {"score_error": str(error)})
        except BaseException as error:  # noqa: BLE001 - whatever the function raises is its answer
            _say(answers, {"error": format_user_error(error)})


def wanted(function: Any) -> list[str] | None:
    """The names of KNOWN that a function takes; None where it takes any. Raises TypeError where it wants others."""
    parameters = inspect.signature(function).parameters.values()
    keywords = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in keywords:
        if p.default is p.empty and (p.name not in KNOWN or p.kind is p.POSITIONAL_ONLY):
            raise TypeError(f"its parameter '{p.name}' is not known; there are: {', '.join(KNOWN)}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in keywords if p.name in KNOWN and p.kind is not p.POSITIONAL_ONLY]


def read_verdict(said: Any) -> Verdict:
    """A verdict of what a function returned: a bool, a number, a Verdict, or as verl has it an object with `score`,
    and `right` or `acc`, of which None says nothing. A finite number below 0, as of functions that give 1 and -1, is a
    score of 0. Right is what scores 1, where nothing else is said. Raises TypeError, ValueError; ScoreError for a
    number above 1."""
    if isinstance(said, Verdict):
        return said
    if isinstance(said, bool):
        return Verdict.of(said)
    if isinstance(said, Mapping) and "score" in said:
        plain = read_verdict(said["score"])
        right, acc, why = (said.get(name) for name in ("right", "acc", "why"))
        counts = bool(right) if right is not None else float(acc) >= 1.0 if acc is not None else plain.right
        return Verdict(plain.score, counts, "" if why is None else str(why))
    try:
        score = float(said)
    except (TypeError, ValueError):
        raise TypeError(f"it returned {said!r:.80}: a bool, a number up to 1 or a Verdict is wanted") from None
    return Verdict(max(score, 0.0) if math.isfinite(score) else score, score >= 1.0)


async def _awaited(said: Any) -> Any:
    return await said


def _limit_memory(memory_mb: int) -> None:
    """Address space beyond what the imports took: what they map is not what the function uses."""
    pages = int(open("/proc/self/statm").read().split()[0]) if sys.platform == "linux" else 0  # noqa: PTH123, SIM115
    room = pages * os.sysconf("SC_PAGE_SIZE") + (memory_mb << 20)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (room if most == resource.RLIM_INFINITY else min(room, most), most))


def _say(out: TextIO, value: dict[str, object]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
