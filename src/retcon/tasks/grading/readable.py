"""Right answers that Math-Verify can compare nothing with, found before a rollout asks for them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence

from retcon.core.errors import MissingExtra, SandboxUnavailable, SessionLost
from retcon.core.installing import how_to_install
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Session

_NO_WORDS = re.compile(r"\\(?:begin|end|text[a-z]*|mbox|mathrm|mathbf|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORDS = re.compile(r"(?<![A-Za-z])(?!(?:sin|cos|tan|log|exp|min|max|gcd|lcm|mod)(?![A-Za-z]))[A-Za-z]{3,}")
AT_ONCE = 2
BATCH = 100  # answers that one call reads
SECONDS = 20.0  # CPU and wall, of a call
MEMORY_MB = 1024
NO_MATHEMATICS = "Math-Verify finds no mathematics in it"
READ = r"""
import json, logging, re
logging.disable(logging.CRITICAL)
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, parser
CLEAN = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
WHOLE = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=CLEAN)]
parser.should_treat_as_complex = lambda text: False
COUNTS = re.compile(r"_\{?\s*i\s*(?:=|\\in|<|\\leq?)")
UNIT = re.compile(r"((?:\\(?:text|operatorname|begin|end)|_)\s*\{[^{}]*\}|_\w|\\[A-Za-z]+)|i")
def read(text):
    said = text if COUNTS.search(text) else UNIT.sub(lambda found: found[1] or "{I}", text)
    found = parse(f"${said}$", WHOLE, parsing_timeout=None)
    return found if said == text or len(found) > 1 else parse(f"${text}$", WHOLE, parsing_timeout=None)
"""
"""Python for a session: what Math-Verify reads in a formula, as a whole and without its own list of units.

Math-Verify takes a formula's letters for real numbers or not by how it is spelt, so that `6 - 3 i` is not `6-3i`. Here
all are real, and `i` is the imaginary unit where it counts no terms: its `{I}`, as of `I^2` it drops the power. As a
letter it is left in what has no complex numbers, such as its intervals: `(1+i, 2)`.
"""
_WARM = f"{READ}read('1/2')\n"
_PARSE = "[n for n, text in enumerate(json.load(open('answers.json'))) if not read(text)]"


def in_words(answer: str) -> bool:
    """Whether it is in words that Math-Verify takes for products of letters (`Paris` is a·i·p·r·s, as `pairs` is)."""
    return _WORDS.search(_NO_WORDS.sub(" ", answer)) is not None


def not_mathematics(answers: Sequence[str], packages: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Those in which Math-Verify finds no mathematics, and why. answers: in LaTeX, without marks of formulas.

    They are read in sessions of a sandbox that preloads `packages`, AT_ONCE of them, many answers at a time: what
    hangs or takes too much memory there is found by halving. Raises MissingExtra without Math-Verify;
    SandboxUnavailable.
    """
    if not answers:
        return {}
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra(f"reading answers as mathematics needs Math-Verify: {how_to_install('grade')}")
    return asyncio.run(_read_all(list(dict.fromkeys(answers)), packages))


async def _read_all(answers: list[str], packages: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The answers that cannot be read, and why."""
    found: dict[str, str] = {}
    queue = [answers[n : n + BATCH] for n in range(0, len(answers), BATCH)]
    async with SandboxPool(packages=packages) as sandbox:

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

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return found


async def _opened(sandbox: SandboxPool) -> Session:
    session = await sandbox.session(limits=Limits(cpu_seconds=300.0, wall_seconds=600.0, memory_mb=MEMORY_MB))
    result = await session.run(_WARM)
    if result.status != "ok":
        await session.close()
        last = result.stderr.strip().rpartition("\n")[2]
        raise SandboxUnavailable(f"Math-Verify does not start in the sandbox: {last}")
    return session
