"""What graders make of tasks before any rollout: graders that are unknown, and answers that none can read."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterable

from retcon.core.errors import MissingExtra, RecipeError, SandboxUnavailable, SessionLost
from retcon.core.installing import how_to_install
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Session
from retcon.tasks.data.fields import DataError, Item, missing
from retcon.tasks.graders.mathematics import PACKAGES, REPLY_CHARS
from retcon.tasks.graders.text import integer, same_choice
from retcon.tasks.grading.registry import kind_of
from retcon.tasks.types import Task

TESTS = ("tests", "test_list", "test", "public_test_cases", "private_test_cases", "input_output")
"""Where tests of programs may stand in a task's `meta`."""
_NO_WORDS = re.compile(r"\\(?:begin|end|text[a-z]*|mbox|mathrm|mathbf|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORDS = re.compile(r"(?<![A-Za-z])(?!(?:sin|cos|tan|log|exp|min|max|gcd|lcm|mod)(?![A-Za-z]))[A-Za-z]{3,}")
BATCH = 100  # answers that one call reads
SECONDS = 20.0  # CPU and wall, of a call
MEMORY_MB = 1024
NO_MATHEMATICS = "Math-Verify finds no mathematics in it"
_WARM = """
import json, logging
logging.disable(logging.CRITICAL)
from math_verify import parse
parse("$1/2$", parsing_timeout=None)
"""
_PARSE = r"""
def readable(text):
    marked = text if "\\boxed" in text else "$\\boxed{" + text.strip().strip("$") + "}$"
    return bool(parse(marked, parsing_timeout=None))
[n for n, text in enumerate(json.load(open("answers.json"))) if not readable(text)]
"""


def refuse_unknown(grader: str, where: str) -> None:
    """Raises DataError where there is no such grader; import paths are taken as they are."""
    try:
        kind_of(grader)
    except RecipeError as error:
        raise DataError(f"{where}: {error}") from None


def has_tests(item: Item) -> bool:
    """Whether there is anything to run an answer's program against."""
    return bool(item.answer) or any(not missing(item.meta.get(name)) for name in TESTS)


def in_words(task: Task) -> bool:
    """Whether an answer is in words that `math` takes for products of letters (`Paris` is a·i·p·r·s, as `pairs` is)."""
    return task.meta.get("grader") == "math" and _WORDS.search(_NO_WORDS.sub(" ", task.answer)) is not None


def unreadable(tasks: Iterable[Task], *, at_once: int = 2) -> list[tuple[Task, str]]:
    """The tasks whose answers their grader could compare nothing with, and why, in their order.

    Integers are read as they stand; other answers of `math` are given to Math-Verify, in sessions of a sandbox, many at
    a time: what hangs or takes too much memory there is found by halving, and is unreadable too. Raises MissingExtra
    without Math-Verify; SandboxUnavailable.
    """
    found: dict[str, str] = {}
    hard: dict[str, list[str]] = {}
    kept = list(tasks)
    for task in kept:
        kind = task.meta.get("grader")
        if kind == "choice":
            try:
                same_choice(task.answer, "")
            except ValueError as error:
                found[task.id] = str(error)
        elif kind == "math" and len(task.answer) > REPLY_CHARS:
            found[task.id] = f"it has {len(task.answer):,} characters, {REPLY_CHARS:,} at most"
        elif kind == "math" and integer(task.answer) is None:
            hard.setdefault(task.answer, []).append(task.id)
    if hard:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra(f"reading answers as mathematics needs Math-Verify: {how_to_install('grade')}")
        for answer, why in asyncio.run(_read_all(list(hard), at_once)).items():
            found.update(dict.fromkeys(hard[answer], why))
    return [(task, found[task.id]) for task in kept if task.id in found]


async def _read_all(answers: list[str], at_once: int) -> dict[str, str]:
    """The answers that cannot be read, and why."""
    found: dict[str, str] = {}
    queue = [answers[n : n + BATCH] for n in range(0, len(answers), BATCH)]
    async with SandboxPool(packages=PACKAGES) as sandbox:

        async def work() -> None:
            session: Session | None = None
            while queue:
                batch = queue.pop()
                session = session or await _opened(sandbox)
                try:
                    files = {"answers.json": json.dumps(batch).encode()}
                    result = await session.run(_PARSE, files=files, timeout=SECONDS)
                except SessionLost as lost:
                    fault = str(lost)
                else:
                    if result.status == "ok":
                        found.update({batch[n]: NO_MATHEMATICS for n in json.loads(str(result.value))})
                        continue
                    fault = result.status
                await session.close()
                session = None
                if len(batch) == 1:
                    found[batch[0]] = f"Math-Verify does not come to an end with it: {fault}"
                else:
                    middle = len(batch) // 2
                    queue.extend((batch[:middle], batch[middle:]))
            if session is not None:
                await session.close()

        await asyncio.gather(*(work() for _ in range(at_once)))
    return found


async def _opened(sandbox: SandboxPool) -> Session:
    session = await sandbox.session(limits=Limits(cpu_seconds=300.0, wall_seconds=600.0, memory_mb=MEMORY_MB))
    result = await session.run(_WARM)
    if result.status != "ok":
        await session.close()
        last = result.stderr.strip().rpartition("\n")[2]
        raise SandboxUnavailable(f"Math-Verify does not start in the sandbox: {last}")
    return session
