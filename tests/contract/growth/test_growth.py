"""Time grows as transcripts do: ratios of CPU time, with bounds far from what comparing all with all would take."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from foreign import FORMATS, Step, fails, user, works
from retcon.purify.offline import Repairer
from retcon.purify.programs import effects
from retcon.store.records import Record
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks
from retcon.transcripts.verdicts import judge


def seconds(work: Callable[[], object]) -> float:
    """The least CPU time of two: what else the machine does only adds to it."""
    took = []
    for _ in range(2):
        begun = time.thread_time()
        work()
        took.append(time.thread_time() - begun)
    return min(took)


def turns(count: int) -> bytes:
    """Each second call fails, and the next one fixes it; names and words of each are its own."""
    steps: list[Step] = [user("add them up")]
    for n in range(count // 2):
        code = f"import math\nside_{n} = {n}\narea_{n} = math.{{}}({n})\nprint(area_{n})"
        steps.append(fails(code.format("sqroot"), "AttributeError", 3, f"Area number {n} is next."))
        steps.append(works(code.format("sqrt"), str(n), f"Sorry, an error. Now for area number {n} of all."))
    return msgspec.json.encode(FORMATS["mint"](steps))


def purified(data: bytes) -> Count:
    count = Count()
    RecordRepairer(Repairer(), "auto", Sinks(), count)(Record(data, 1, "f.jsonl"))
    return count


def test_time_grows_with_the_turns_of_a_transcript() -> None:
    short, long = turns(100), turns(400)
    assert purified(long).shallow == 200
    assert seconds(lambda: purified(long)) < 10 * seconds(lambda: purified(short))  # 4 times the turns; 16 if squared


def test_time_grows_with_the_runs_that_a_second_pass_would_change() -> None:
    code = "def twice(n):\n    return n + {}\n\nassert twice(4) == 8"
    plan = fails(code.format(2), "AssertionError", 4, "We add two to the number to double it.")
    second = fails(code.format("m"), "NameError", 2, "We add the number to itself.")
    whole = (user("twice?"), plan, second, works(code.format("n"), "8", ""))
    steps = [*whole, user("again?"), second, works(code.format("n"), "8", "Now.")]
    short, long = (msgspec.json.encode(FORMATS["mint"](steps * n)) for n in (20, 80))
    assert (purified(long).shallow, purified(long).left["unsettled"]) == (80, 160)
    assert seconds(lambda: purified(long)) < 10 * seconds(lambda: purified(short))


@pytest.mark.parametrize(
    "work",
    [
        lambda n: judge("x\n" + "\n" * n + "  File a.py, line 1\nSyntaxError: no"),
        lambda n: judge("-" * 30 + "\n" * n + "Traceback (most recent call last)" + " " * n),
        lambda n: judge("<ipython-input-1>\n" * n + "Traceback (most recent call last):\n  File"),
        lambda n: effects("x = (\n" + "\n" * n + "def"),
    ],
)
def test_time_grows_with_the_line_breaks_of_an_output_or_a_program(work: Callable[[int], object]) -> None:
    short, long = 20_000, 160_000
    assert seconds(lambda: work(long)) < 30 * seconds(lambda: work(short)) + 0.2  # 8 times as many; 64 if squared
