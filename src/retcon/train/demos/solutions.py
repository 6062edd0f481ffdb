"""Worked solutions whose arithmetic is annotated, as GSM8K's (`She sold 48/2 = <<48/2=24>>24 clips.`), as programs.

Every step becomes a variable that is named by its number, x1, x2, …; a number that is the result of an earlier step
becomes that step's variable; and the sentence of a step says what its variable is (`She sold x1 clips.`), without the
result, which whoever writes the program does not know yet.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from retcon.tasks.graders.text import rational
from retcon.train.demos.arithmetic import NoArithmetic, numbers_in, parse, value_of, written

OPEN = "<<"
_MONEY = r"[$€£]?"
_NUMBER = r"\d(?:[\d,]*\d)?(?:\.\d+)?|\.\d+"
_SAID = r"[$€£(\d.+\-–−][\d\s.,$€£%*/xX×÷+\-–−()]*?"
_STEP = re.compile(
    rf"(?P<said>{_SAID})?\s*(?P<equals>=?)\s*{_MONEY}\s*"
    rf"<<(?P<left>[^<>]*?)=(?P<right>[^<>=]*)>>\s*{_MONEY}(?:{_NUMBER})?%?"
    rf"|(?P<plainly>{_SAID})\s*=\s*{_MONEY}(?P<result>{_NUMBER})"
)
_IN_TEXT = re.compile(rf"(?<![\w.]){_MONEY}(?P<number>{_NUMBER})(?![\w%]|\.\d)")
_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_TENS = ("thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_IN_WORDS = {word: Fraction(n) for n, word in enumerate(_WORDS)} | {
    word: Fraction(10 * n) for n, word in enumerate(_TENS, 3)
}
_UNKNOWN = re.compile(r"(?<![\w'’$])\d*[a-zA-Z]\s*=|(?<![\w'’$])\d+[xyzXYZ]\b")
COMMON = frozenset(
    map(Fraction, (*range(1, 13), 16, 24, 25, 30, 31, 36, 50, 52, 60, 100, 365, 366, 1000, 1440, 3600, 5280))
)
"""Numbers that a solution may bring: small ones, of hours, days, weeks and years, ounces, feet, cents, shares."""
_BECAUSE = r"\s*,?\s*(?:because|since|as)\s+(?:of\s+)?{name}\s*(?=[.,;]|$)"


class Unusable(Exception):
    """A solution of which no program can be made; the message says why, alike for all that fail alike."""


@dataclass(frozen=True, slots=True)
class Step:
    """words: what the variable is, in a line; "" where the sentence is an earlier step's. expression: Python. value:
    what it is, exactly. uses: names of the steps in it."""

    name: str
    words: str
    expression: str
    value: Fraction
    uses: frozenset[str] = frozenset()

    @property
    def code(self) -> str:
        return f"{self.name} = {self.expression}"


def read_steps(solution: str, question: str, answer: str) -> tuple[Step, ...]:
    """The steps of an annotated solution, up to the last one that gives the answer (the last of all where none does).

    Raises Unusable.
    """
    if OPEN not in solution:
        raise Unusable("no annotated step")
    lines = [line.strip() for line in solution.partition("\n####")[0].splitlines()]
    steps = _Reader(question).read([(line, found) for line in lines if (found := _steps_in(line))])
    if not steps:
        raise Unusable("no step that is arithmetic")
    wanted = rational(answer)
    right = [n for n, step in enumerate(steps) if step.value == wanted]
    return tuple(steps[: right[-1] + 1] if right else steps)


@dataclass(frozen=True, slots=True)
class _Found:
    """A step in its line. text: what its sentence says in its place, {} for the variable."""

    start: int
    end: int
    tree: ast.expr
    text: str


class _Reader:
    """Reads one solution."""

    def __init__(self, question: str) -> None:
        self._asked = frozenset(_numbers(question))
        self._steps: list[Step] = []
        self._later: Counter[Fraction] = Counter()
        """Numbers of the steps that are yet to be read."""
        self._said: frozenset[Fraction] = frozenset()
        """Numbers of the line that is read, outside of its arithmetic."""

    def read(self, lines: Sequence[tuple[str, Sequence[_Found]]]) -> list[Step]:
        """The steps of lines."""
        self._later = Counter(n for _, found in lines for one in found for n in numbers_in(one.tree))
        for line, found in lines:
            before = len(self._steps)
            self._said = frozenset(_numbers(_without(line, found)))
            if new := [one for one in found if self._add(one.tree)]:
                words = self._words(line, new, before)
                if _UNKNOWN.search(words):
                    raise Unusable("an equation with an unknown, which is not a program")
                self._steps[before] = replace(self._steps[before], words=words)
        return self._steps

    def _add(self, tree: ast.expr) -> bool:
        """Whether the tree is a step: one that says an earlier result again is none."""
        self._later.subtract(numbers_in(tree))
        uses: set[str] = set()

        def name_of(value: Fraction) -> str | None:
            name = self._name(value, uses)
            if name is not None:
                uses.add(name)
            elif not self._given(value):
                raise Unusable("a number that neither the question nor an earlier step contains")
            return name

        name = f"x{len(self._steps) + 1}"
        expression = written(tree, name_of)
        if expression in uses:
            return False
        self._steps.append(Step(name, "", expression, value_of(tree), frozenset(uses)))
        return True

    def _name(self, value: Fraction, uses: Collection[str]) -> str | None:
        """The newest step of that value, one that is not in this expression yet if there is any; uses: of this one.

        A number that the question has too is the question's, unless the step comes right before and the sentence does
        not speak of that number, or nothing else takes up the step.
        """
        same = [step.name for step in reversed(self._steps) if step.value == value]
        if not same:
            return None
        name = next((name for name in same if name not in uses), same[0])
        taken = {name for step in self._steps for name in step.uses}
        if value not in self._asked:
            return name
        if name in {*taken, *uses}:
            return None
        at_once = name == self._steps[-1].name and value not in self._said
        return name if at_once or self._later[value] <= 0 else None

    def _given(self, value: Fraction) -> bool:
        """Whether whoever reads the question can know a number: it is there, it is a share or the rest of one that is
        there, or everybody knows it."""
        known = {value, 100 * value, 100 - value, 100 - 100 * value, 100 * value - 100, value - 100}
        return not known.isdisjoint(self._asked) or value in COMMON or 1 / (value or 1) in COMMON

    def _words(self, line: str, found: Sequence[_Found], before: int) -> str:
        made = self._steps[before:]
        parts: list[str] = []
        end = 0
        for one, step in zip(found, made, strict=True):
            parts += [self._named(line[end : one.start], before), one.text.replace("{}", step.name)]
            end = one.end
        words = "".join([*parts, self._named(line[end:], before)])
        for step in made:
            if words.count(step.name) > 1:
                words = re.sub(_BECAUSE.format(name=step.name), "", words)
        return " ".join(words.split())

    def _named(self, text: str, before: int) -> str:
        """Text with variables in place of results: of the steps of this line, and of those before it."""
        names = {step.value: step.name for step in (*reversed(self._steps[before:]), *self._steps[:before])}

        def put(match: re.Match[str]) -> str:
            value = rational(match["number"])
            return match[0] if value is None or value in self._asked else names.get(value, match[0])

        return _IN_TEXT.sub(put, text)


def _steps_in(line: str) -> list[_Found]:
    """The steps of a line: what is annotated, and what is said with its result and is right (`54*5 = $270`)."""
    found: list[_Found] = []
    for match in _STEP.finditer(line):
        said = _read(match["said"] or match["plainly"])
        if match["left"] is None:
            if said is not None and not isinstance(said, ast.Constant) and value_of(said) == rational(match["result"]):
                found.append(_Found(match.start(), match.end(), said, "{}"))
            continue
        tree = _read(match["left"])
        if tree is None:
            raise Unusable("a step that is not arithmetic")
        if isinstance(tree, ast.Constant) and said is not None and not isinstance(said, ast.Constant):
            tree = said  # `287 x 4 = <<1148=1148>>`
        # What the sentence computes is said by the program; what it says otherwise stays.
        same = said is not None and value_of(said) == value_of(tree)
        if same:
            found.append(_Found(match.start(), match.end(), tree, "{}"))
        else:
            kept = match["said"] or ""
            text = f"{kept.rstrip()} = {{}}" if match["equals"] else f"{kept} {{}}"
            found.append(_Found(match.start(), match.end(), tree, text))
    return found


def _without(line: str, found: Sequence[_Found]) -> str:
    for one in reversed(found):
        line = f"{line[: one.start]} {line[one.end :]}"
    return line


def _read(text: str | None) -> ast.expr | None:
    if text is None:
        return None
    try:
        return parse(text)
    except NoArithmetic:
        return None


def _numbers(text: str) -> list[Fraction]:
    """Those that a text has, in digits or in words."""
    in_digits = (rational(match[0]) for match in re.finditer(_NUMBER, text))
    in_words = (_IN_WORDS.get(word) for word in re.findall("[a-z]+", text.lower()))
    return [value for value in (*in_digits, *in_words) if value is not None]
