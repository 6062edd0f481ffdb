r"""Grader by mathematical equality (`\frac12`, `0.5`, `50\%`), with Math-Verify.

Reading and comparing expressions can hang and take any amount of memory (`9^{9^{9^9}}`), and a model writes them: they
run in sessions of the sandbox, with limits. Each session is warmed up once: the first expression costs half a second,
the next some milliseconds. Math-Verify is in the extra [grade].

A reply that exceeds the limits is wrong, where the task's own answer can be compared within them: if it were a fault,
its rollout would be dropped, and an uncertain model would gain by writing such.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field

from retcon.core.errors import InfrastructureFault, MissingExtra, SandboxUnavailable, SessionLost
from retcon.core.installing import how_to_install
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Sandbox, Session
from retcon.tasks.graders.quantities import (
    CHARS,
    changes_number,
    parse_quantity,
    same_measures,
    same_quantity,
    split_unit,
)
from retcon.tasks.graders.stated import find_stated
from retcon.tasks.graders.symbols import has_list, space_commas, to_latex, to_ratio, ungroup, use_decimal_point
from retcon.tasks.graders.text import (
    MOST_DIGITS,
    expand_exponent,
    final_answer,
    find_marked,
    normalize,
    parse_integer,
    parse_rational,
    same_code,
    strip_thinking,
)
from retcon.tasks.grading.registry import Host, Kind, Reply, Verdict
from retcon.tasks.grading.warm import WarmSessions
from retcon.tasks.types import Task

# Numbers that are written with their base: `52_8`, `52_{\text{eight}}`, `(52)_8`, `52 in base 8`.
#
# Math-Verify reads the digits and ignores the base. Pure functions; no pattern backtracks, as a model writes the text.

TEN = 10  # the base of a number without one
LARGEST = 36  # in which Python reads digits
_DIGIT = "(?:[\\dac-f]|b(?!ase))"
_DIGITS = rf"(?:([+-])\s*+)?(?=[a-f]*\.?\d)({_DIGIT}++(?:,{_DIGIT}{{3,4}})*+(?:\.{_DIGIT}++)?|\.{_DIGIT}++)"
_BASE = r"\s*+(?:_\s*+(?:base)?|(?:in\s*+)?base)[\s-]*+(\w++)"
_NUMBER = re.compile(rf"(?<![\w.,]){_DIGITS}{_BASE}", re.ASCII | re.IGNORECASE)
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NOTHING = re.compile(r"\\[,;:!]|\{,\}|\\(?:text|math)[a-z]*|\\(?:mbox|rm|left|right)\b|[{}]")
_SPACE = re.compile(r"\\ |[()$~]")
_BEHIND_BOX = re.compile(r"\}(_(?:\w|\{\w+\}))")


def same_in_base(answer: str, reply: str) -> bool | None:
    r"""Compare numbers with their bases; None for an `answer` without one.

    A reply without a base is in base ten: neither MATH's own grader nor PRM800K's takes `52` for `52_8`.
    """
    ours = _in_base(final_answer(answer) or answer)
    if ours is None:
        return None
    found = final_answer(_BEHIND_BOX.sub(r"\1}", reply))
    theirs = _in_base(found) if found is not None else _last_in_base(strip_thinking(reply))
    return None if theirs is None and ours[1] == TEN else theirs == ours


def _in_base(text: str) -> tuple[Fraction, int] | None:
    """Parse a number with its base into value and base, else None."""
    found = _NUMBER.fullmatch(_without_markup(text.rpartition("=")[2]).lstrip("*` \t\n").rstrip("*` .\n"))
    return _value(found) if found else None


def _last_in_base(text: str) -> tuple[Fraction, int] | None:
    """Parse the last such number in a text without a marked answer."""
    read = (_value(found) for found in _NUMBER.finditer(_without_markup(text)))
    return next(reversed([one for one in read if one is not None]), None)


def _without_markup(text: str) -> str:
    return _SPACE.sub(" ", _NOTHING.sub("", text))


def _value(found: re.Match[str]) -> tuple[Fraction, int] | None:
    sign, digits, name = found.groups()
    name = str(_NAMES.index(name.lower())) if name.lower() in _NAMES else name
    base = int(name) if name.isdecimal() and len(name) <= len(str(LARGEST)) else 0
    whole, _, part = digits.replace(",", "").partition(".")
    if not 2 <= base <= LARGEST or len(digits) > MOST_DIGITS:
        return None
    try:
        return Fraction(int((sign or "") + whole + part, base), base ** len(part)), base
    except ValueError:  # a digit that the base does not have
        return None


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
    formula = text if COUNTS.search(text) else UNIT.sub(lambda found: found[1] or "{I}", text)
    found = parse(f"${formula}$", WHOLE, parsing_timeout=None)
    return found if formula == text or len(found) > 1 else parse(f"${text}$", WHOLE, parsing_timeout=None)
"""
"""Python for a session: Math-Verify's parser for a whole formula, without its own list of units.

Math-Verify treats a formula's letters as real or complex by its spelling, so that `6 - 3 i` is not `6-3i`. Here all are
real, and `i`, unless it is an index, is the imaginary unit: its `{I}`, as it drops the power of `I^2`. It stays a
letter where there are no complex numbers, such as in intervals: `(1+i, 2)`.
"""
_WARM_READER = f"{READ}read('1/2')\n"
_PARSE = "[n for n, text in enumerate(json.load(open('answers.json'))) if not read(text)]"


def in_words(answer: str) -> bool:
    """Return whether Math-Verify would read words as products of letters. `Paris` is a·i·p·r·s, as `pairs` is."""
    return _WORDS.search(_NO_WORDS.sub(" ", answer)) is not None


def find_unreadable(answers: Sequence[str], packages: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Map answers that Math-Verify cannot read to the reason. answers: in LaTeX, without marks of formulas.

    They are read in AT_ONCE sessions of a sandbox that preloads `packages`, many answers at a time: one that hangs or
    takes too much memory is found by bisection. Raises MissingExtra without Math-Verify; SandboxUnavailable.
    """
    if not answers:
        return {}
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra(f"reading answers as mathematics needs Math-Verify: {how_to_install('grade')}")
    return asyncio.run(_read_all(list(dict.fromkeys(answers)), packages))


async def _read_all(answers: list[str], packages: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Map unreadable answers to the reason."""
    found: dict[str, str] = {}
    queue = [answers[n : n + BATCH] for n in range(0, len(answers), BATCH)]
    async with SandboxPool(packages=packages) as sandbox:

        async def work() -> None:
            session: Session | None = None
            while queue:
                batch = queue.pop()
                session = session or await _open_session(sandbox)
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


async def _open_session(sandbox: SandboxPool) -> Session:
    session = await sandbox.session(limits=Limits(cpu_seconds=300.0, wall_seconds=600.0, memory_mb=MEMORY_MB))
    result = await session.run(_WARM_READER)
    if result.status != "ok":
        await session.close()
        last = result.stderr.strip().rpartition("\n")[2]
        raise SandboxUnavailable(f"Math-Verify does not start in the sandbox: {last}")
    return session


PACKAGES = {"math-verify": ("math_verify",)}
"""For `SandboxPool(packages=…)`: packages that the sandbox of a `MathGrader` must preload."""

ANSWER_CHARS = 4000
"""Most characters: a longer marked answer is wrong, and a longer right answer is refused."""

TRUSTED_SECONDS = 60.0  # no model's programs run in these sessions
WAITING = 10.0  # wall seconds for each CPU second: on a busy machine an answer must not become a fault
ZERO = "0"  # unlike most answers, for test comparisons

_PER_CENT = re.compile(
    r"(?<!\s)\s*(?:\\text\{\s*)?(?:\\?%|(?<![A-Za-z])(?:percent|per cent|pct)(?![A-Za-z]))[\s}]*$", re.IGNORECASE
)
_AND = re.compile(
    r"(?<!\s)\s*(?:,\s*)?(?:\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z]))\s*(?:,\s*)?"
)
_COMMA = re.compile(r"(?!-?\d{1,3},\d{3}$)(-?\d+),(\d+)", re.ASCII)  # of a decimal, or of a list
_SENTENCES = re.compile(r"[.!?]\s+\w|\banswer\b", re.IGNORECASE)
_VERB = re.compile(r"(?<![\\\w])(?:is|are|was|were|will|has|have|had|equals?)(?!\w)", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\{A-Za-z])[A-Za-z]{2,}")

# differ: whether two numbers differ by more than rounding. Math-Verify misses some differences, as it rounds to six
# decimals, and compares only the first digits of huge numbers.
_WARM = (
    READ
    + r"""
from math_verify import verify
from sympy import FiniteSet, Interval, N, Number, Tuple
def differ(gold, reply):
    if {1, 2} == {isinstance(r[0], (Interval, Tuple)) + 2 * (isinstance(r[0], FiniteSet) and r[-1][:2] == r"\{")
                  for r in (gold, reply) if r}:
        return True  # a set, and an interval or a point
    values = [N(read[0], 30) for read in (gold, reply) if read and getattr(read[0], "is_number", False)]
    if len(values) < 2 or not all(isinstance(value, Number) and value.is_finite for value in values):
        return False
    apart, (least, most) = abs(values[0] - values[1]), sorted(map(abs, values))
    noise = 1e-15 if least < 1e-60 else 0  # of sums that cancel out
    return bool(max(noise, most / 1000) < apart)
samples = [read(one) for one in (
    r"\frac{1}{2}", "(1, 2]", "x^2 + 2x", r"2\sqrt{3}", r"\{1, 2\}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"\text{Monday}", r"90^\circ", r"50\%", "x = 5", r"\frac{\pi}{3}", r"(-\infty, 2) \cup (3, \infty)", "1.5", "a+bi"
)]
for one, other in zip(samples, samples[1:] + samples[:1]):
    verify(one, one, timeout_seconds=None), verify(one, other, timeout_seconds=None), differ(one, one)
"""
)
_COMPARE = """
gold, reply = map(read, json.load(open("case.json")))
"unreadable" if not gold else verify(gold, reply, timeout_seconds=None) and not differ(gold, reply)
"""


@dataclass(frozen=True, slots=True)
class MathSettings:
    seconds: Annotated[
        float, Field(gt=0, description="CPU seconds of a comparison; ten times as many on the clock")
    ] = 10.0
    memory_mb: Annotated[int, Field(gt=0, description="memory that a comparison may take, MiB")] = 1024
    at_once: Annotated[int, Field(ge=1, description="answers that are compared at a time")] = 2


class MathGrader:
    r"""Grader by mathematical equality, used as `async with`.

        async with SandboxPool(packages=PACKAGES) as sandbox, MathGrader(sandbox) as grader:
            await grader.equal("1/2", r"so it is \boxed{0.5}")

    at_once: answers that are compared at a time, in as many sessions. seconds: CPU, of a comparison, which may take
    WAITING times as long on the clock. memory_mb: of a session.
    """

    def __init__(self, sandbox: Sandbox, *, at_once: int = 2, seconds: float = 10.0, memory_mb: int = 1024) -> None:
        self._limits = Limits(cpu_seconds=seconds, wall_seconds=WAITING * seconds, memory_mb=memory_mb)
        limits = Limits(cpu_seconds=60.0, wall_seconds=600.0, memory_mb=memory_mb)
        self._sessions = WarmSessions(sandbox, _WARM, limits, at_once=at_once, trusted_seconds=TRUSTED_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sessions, once the comparisons that run in them have ended."""
        await self._sessions.close()

    async def equal(self, answer: str, reply: str) -> bool:
        r"""Compare `answer` with that of `reply`: in `\boxed{…}`, after `####` or stated.

        False too where the reply's exceeds the limits of CPU time or memory, while `answer` itself does not.

        Raises ValueError where Math-Verify can read nothing in `answer`; InfrastructureFault where `answer` exceeds the
        limits, the comparison raised or exceeded its time on the clock, or the sandbox had a fault.
        """
        return await self._decide(answer, reply) or False

    async def _decide(self, answer: str, reply: str) -> bool | None:
        """Compare as `equal`; None where the reply's answer exceeds the limits."""
        based = same_in_base(answer, reply)
        if based is not None:
            return based
        given = _answer(reply)
        if given is None:
            return normalize(strip_thinking(reply[-ANSWER_CHARS:])) == normalize(answer)
        if len(given) > ANSWER_CHARS:
            return False
        if given == answer.strip():
            return True
        ours, theirs = _latex(answer), to_latex(given)
        if (identical := same_code(ours, theirs)) is not None:
            return identical
        ours, theirs = to_ratio(ours, theirs), to_ratio(theirs, ours)
        plain = space_commas if has_list(ours) or has_list(theirs) else ungroup
        ours, theirs = plain(ours), plain(theirs)
        if "," in theirs and parse_quantity(_per_cent(ours)[0]) is not None:
            theirs = use_decimal_point(theirs)  # a list is not a number
        if normalize(ours) == normalize(theirs):
            return True
        number = _same_number(ours, theirs)
        decided = same_measures(ours, theirs) if number is None else number
        if decided is not None:
            return decided
        (ours, our_unit), (theirs, their_unit) = split_unit(ours), split_unit(theirs)
        return our_unit.fits(their_unit) and await self._within_limits(expand_exponent(ours), expand_exponent(theirs))

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        right = await self._decide(task.answer, reply.text)
        why = "not read within its limits" if right is None else "equal" if right else "not equal"
        return Verdict.of(right or False, why, _answer(reply.text))

    async def check(self, task: Task) -> None:
        if parse_rational(task.answer) is not None:
            return
        try:
            await self._equal(_latex(task.answer), ZERO)
        except ValueError as error:
            raise ValueError(f"task {task.id}: {error}") from None

    async def _within_limits(self, answer: str, given: str) -> bool | None:
        """Compare as `_equal`; None where `given` exceeds the limits: `answer` can be compared with itself, which may
        need no computing, and with another number."""
        try:
            return await self._equal(answer, given)
        except _TooMuch:
            for other in (answer, ZERO):
                await self._equal(answer, other)
            return None

    async def _equal(self, answer: str, given: str) -> bool:
        value = await self._compare([_list_commas(answer), _list_commas(given)])
        if value == "'unreadable'":
            raise ValueError(f"answer {answer!r} cannot be graded: Math-Verify finds no mathematics in it")
        return value == "True"

    async def _compare(self, texts: list[str]) -> str | None:
        async with self._sessions.acquire() as session:
            files = {"case.json": json.dumps(texts).encode()}
            result = await session.run(_COMPARE, files=files, limits=self._limits)
            if result.status != "ok":
                last = result.stderr.strip().rpartition("\n")[2]
                # The wall clock runs out on a busy machine; if it has not, CPU time has.
                in_time = result.seconds < self._limits.wall_seconds
                kind = _TooMuch if result.status in ("timeout", "limit") and in_time else InfrastructureFault
                raise kind(f"an answer could not be graded: {result.status}: {last}")
            return result.value


class _TooMuch(InfrastructureFault):
    """A comparison exceeded its limits of CPU time or memory."""


def _answer(reply: str) -> str | None:
    """Return a reply's answer, or None. `<answer>` is read like a reply where it holds sentences."""
    marked = find_marked(reply)
    if marked is not None:
        return marked
    tagged = final_answer(reply)
    if tagged is None or _SENTENCES.search(tagged):
        return find_stated(reply) or tagged
    if _VERB.search(tagged) or (tagged.endswith((".", "!")) and len(_WORD.findall(tagged)) > 2):
        return find_stated(reply) or _predicate(tagged) or tagged
    return tagged


def _predicate(sentence: str) -> str | None:
    """Return the number or formula after a sentence's only verb: `The value of $k$ is 5.`"""
    subject, *rest = _VERB.split(sentence)
    if len(rest) != 1 or changes_number(subject):
        return None
    found = find_stated(f"The answer is {rest[0]}")
    return None if found is None or found.startswith(r"\text{") else found


def _latex(answer: str) -> str:
    if len(answer) > ANSWER_CHARS:
        raise ValueError(
            f"answer {answer[:40]!r}… cannot be graded: it has {len(answer)} characters, {ANSWER_CHARS} at most"
        )
    return to_latex(answer)


def _far(one: Fraction, other: Fraction) -> bool:
    """Return whether numbers differ by more than rounding."""
    return abs(one - other) > max(abs(one), abs(other)) / 1000


def _same_number(answer: str, given: str) -> bool | None:
    """Compare numbers with or without units; None for other texts, and for numbers so near that one may be the other
    rounded. Per cent are hundredths or whole, like the other side; less than one of them is hundredths."""
    (answer, ours_in), (given, theirs_in) = _per_cent(answer), _per_cent(given)
    ours, theirs = parse_quantity(answer), parse_quantity(given)
    if ours is None or theirs is None:
        return None
    one, other = ours.value, theirs.value
    pairs = [(one, other)]
    if ours_in != theirs_in:
        hundredths = (one / 100, other) if ours_in else (one, other / 100)
        pairs = [hundredths, *(pairs if abs(one if ours_in else other) >= 1 else [])]
    if not ours.unit.fits(theirs.unit) or all(_far(*pair) for pair in pairs):
        return False
    return True if any(a == b for a, b in pairs) else None


def _per_cent(text: str) -> tuple[str, bool]:
    """Return the text without its last `%`, and whether it had one."""
    found = _PER_CENT.search(text, max(0, len(text) - CHARS))
    return (text, False) if found is None else (text[: found.start()], True)


def _list_commas(text: str) -> str:
    """Replace `and` and `or` by commas; remove what would end Math-Verify's formula."""
    text = _AND.sub(", ", text.replace("$", "").replace("\n", " "))
    return text.rstrip("\\ ")


def check_math_verify() -> None:
    """Raise MissingExtra where Math-Verify is not installed; imports nothing."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra(f"grading by mathematics needs Math-Verify: {how_to_install('grade')}")


async def _open(settings: MathSettings, host: Host) -> MathGrader:
    check_math_verify()
    return MathGrader(
        await host.sandbox(), at_once=settings.at_once, seconds=settings.seconds, memory_mb=settings.memory_mb
    )


def _unreadable(answers: Sequence[str]) -> dict[str, str]:
    """Map unreadable answers to the reason; integers are read without Math-Verify."""
    found = {a: f"it has {len(a):,} characters, {ANSWER_CHARS:,} at most" for a in answers if len(a) > ANSWER_CHARS}
    texts = {a: _list_commas(to_latex(a)) for a in answers if a not in found and parse_integer(a) is None}
    why = find_unreadable(list(texts.values()), PACKAGES)
    return found | {a: why[text] for a, text in texts.items() if text in why}


def _in_words(answer: str) -> bool:
    return in_words(answer) and not same_quantity(answer, answer)


def _ambiguous(answer: str) -> str:
    found = _COMMA.fullmatch(answer.strip().strip("$").strip().replace("{,}", ","))
    return "" if found is None else f"a list of {found[1]} and {found[2]}; as a number write {found[1]}.{found[2]}"


GRADER = Kind(
    "math",
    MathSettings,
    _open,
    PACKAGES,
    _unreadable,
    _in_words,
    _ambiguous,
    lambda _settings: check_math_verify(),
    uses=("math-verify", "latex2sympy2_extended", "sympy"),
)
