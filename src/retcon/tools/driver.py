"""Program of the sandbox that runs those of a batch (`batches`).

Each has names of its own. A line gives its result, None if it must run on its own: it ran long, warned, printed much,
or ended in a way that a fresh interpreter may not. Standard library only.
"""

import ast
import builtins
import signal
import sys
from io import StringIO
from time import perf_counter
from types import ModuleType

from retcon.sandbox.jail.child import FILENAME
from retcon.sandbox.jail.program import compile_program, format_exception, register_source, type_name

SECONDS = 0.1
"""Most CPU time of a program."""


class RanLong(BaseException):
    """A program took more than SECONDS."""


class Clock:
    """Raises RanLong in programs, and nowhere else."""

    def __init__(self) -> None:
        self._armed = False
        signal.signal(signal.SIGPROF, self._stop)

    def __enter__(self) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def __exit__(self, *_: object) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _stop(self, *_: object) -> None:
        if self._armed:
            raise RanLong


def run(source: str, valid: bool, clock: Clock, longest: int) -> list[object] | None:
    """Return [stdout, stderr, value, type of the error, seconds] of a program.

    valid: whether the host took it for Python. longest: most characters of all texts.
    """
    names = vars(ModuleType("__main__"))
    names.update(__builtins__=builtins, __file__=FILENAME)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, warned = StringIO(), StringIO()
    raised, report, value = None, "", None
    began = perf_counter()
    register_source(source, FILENAME)
    try:
        with clock:
            body, last = compile_program(source, FILENAME, echo=True)
            if not valid:
                return None
            exec(body, names)
            if last is not None and (result := eval(last, names)) is not None:
                value = repr(result)
    except (MemoryError, RecursionError):
        return None
    except Exception as error:  # noqa: BLE001 - what it raised is its result
        raised, trace = type_name(error), error.__traceback__
        report = format_exception(error, trace and trace.tb_next, wrapper="")
    finally:
        sys.stdout, sys.stderr = streams
    shown = f"{out.getvalue()}{report}{value or ''}"
    if warned.getvalue() or len(shown) > longest or not shown.isascii():
        return None
    return [out.getvalue(), report, value, raised, perf_counter() - began]


if __name__ == "__main__":
    clock = Clock()
    longest, programs = ast.literal_eval(sys.stdin.read())
    for source, valid in programs:
        try:
            found = run(source, valid, clock, longest)
        except BaseException:  # noqa: BLE001 - whatever ended it
            found = None
        print(ascii(found), flush=True)
