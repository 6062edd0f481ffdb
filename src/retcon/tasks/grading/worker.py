"""Process that calls a user's grading function: `python -m retcon.tasks.grading.worker`.

It can be ended by its parent, and ends with it. It reads and writes lines of JSON on the original standard input and
output; the function's own output goes to standard error, and it, and the programs that it starts, have nothing to read.
First line in: {"path", "memory_mb"}; out: {"wants": names of its parameters, or null for all} or {"error"}. Then for
each line of arguments {"score", "right", "why"}, {"error"}, or {"score_error"} for a score outside 0 to 1.
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
"""Parameters that a function may have."""


def main() -> None:
    """Serve until standard input ends."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # else a program that reads would take the next request
    os.close(nothing)
    if sys.platform == "linux":  # a function that hangs does not see that standard input ended
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    first = json.loads(asked.readline())
    try:
        function = import_object(first["path"])
        _send(answers, {"wants": find_parameters(function)})
    except BaseException as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        _send(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _limit_memory(first["memory_mb"])
    for line in asked:
        try:
            given = json.loads(line)
            if "trajectory" in given:
                given["trajectory"] = from_dict(given["trajectory"], "trajectory")
            value = function(**given)
            verdict = read_verdict(asyncio.run(_await(value)) if inspect.isawaitable(value) else value)
            _send(answers, {"score": verdict.score, "right": verdict.right, "why": verdict.why})
        except ScoreError as error:
            _send(answers, {"score_error": str(error)})
        except BaseException as error:  # noqa: BLE001 - what the function raises is its answer
            _send(answers, {"error": format_user_error(error)})


def find_parameters(function: Any) -> list[str] | None:
    """Return the names of KNOWN that a function takes, None for any. Raises TypeError for others."""
    parameters = inspect.signature(function).parameters.values()
    keywords = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in keywords:
        if p.default is p.empty and (p.name not in KNOWN or p.kind is p.POSITIONAL_ONLY):
            raise TypeError(f"its parameter '{p.name}' is not known; there are: {', '.join(KNOWN)}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in keywords if p.name in KNOWN and p.kind is not p.POSITIONAL_ONLY]


def read_verdict(value: Any) -> Verdict:
    """Turn a function's value into a verdict. It is a bool, a number, a Verdict, or as in verl an object with `score`,
    and `right` or `acc`, where None counts as absent. A finite number below 0, of functions that return 1 and -1, is a
    score of 0. By default a score of 1 is right. Raises TypeError, ValueError; ScoreError for a number above 1."""
    if isinstance(value, Verdict):
        return value
    if isinstance(value, bool):
        return Verdict.of(value)
    if isinstance(value, Mapping) and "score" in value:
        plain = read_verdict(value["score"])
        right, acc, why = (value.get(name) for name in ("right", "acc", "why"))
        counts = bool(right) if right is not None else float(acc) >= 1.0 if acc is not None else plain.right
        return Verdict(plain.score, counts, "" if why is None else str(why))
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"it returned {value!r:.80}: a bool, a number up to 1 or a Verdict is wanted") from None
    return Verdict(max(score, 0.0) if math.isfinite(score) else score, score >= 1.0)


async def _await(value: Any) -> Any:
    return await value


def _limit_memory(memory_mb: int) -> None:
    """Limit the address space beyond that of the imports, whose maps are not the function's."""
    pages = int(open("/proc/self/statm").read().split()[0]) if sys.platform == "linux" else 0  # noqa: PTH123, SIM115
    room = pages * os.sysconf("SC_PAGE_SIZE") + (memory_mb << 20)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (room if most == resource.RLIM_INFINITY else min(room, most), most))


def _send(out: TextIO, value: dict[str, object]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
