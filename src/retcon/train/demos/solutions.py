"""Programs from worked solutions with annotated arithmetic, such as GSM8K's.

In `She sold 48/2 = <<48/2=24>>24 clips.` every step becomes a variable, x1, x2, …; a number that is the result of an
earlier step becomes that step's variable; and the sentence of a step describes its variable (`She sold x1 clips.`),
without the result, which is not known before the program runs.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from retcon.tasks.graders.text import parse_rational

MOST_CHARS = 200
MOST_POWER = 64
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TIMES = re.compile(r"(?<=[\d)\s])[xX×](?=[\s\d(.$])")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_SIGNS = str.maketrans({"÷": "/", "−": "-", "–": "-", "^": "**", "$": "", "€": "", "£": ""})
_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
_ALLOWED = re.compile(r"[\d\s.+\-*/()]+")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
}


class NoArithmetic(Exception):
    """A text that is not arithmetic."""


def parse(text: str) -> ast.expr:
    """Parse arithmetic such as `12 x $1,000 * 50%`: numbers, + - * / // ** and parentheses. Raises NoArithmetic."""
    plain = _THOUSANDS.sub("", text.strip())
    plain = _TIMES.sub("*", plain.translate(_SIGNS))
    plain = _ZEROS.sub("", _PERCENT.sub(r"(\1/100)", plain))
    if not plain.strip() or len(plain) > MOST_CHARS or not _ALLOWED.fullmatch(plain):
        raise NoArithmetic(text)
    try:
        tree = ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NoArithmetic(text) from error
    value_of(tree)
    return tree


def value_of(tree: ast.expr) -> Fraction:
    """Return the exact value. Raises NoArithmetic for divisions by zero, large powers and other syntax."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return Fraction(str(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return value_of(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = value_of(left), value_of(right)
            if power.denominator != 1 or not 0 <= power <= MOST_POWER:
                raise NoArithmetic("a power that is negative, fractional or too large")
            return base ** int(power)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            try:
                return _OPERATORS[type(operator)](value_of(left), value_of(right))
            except ZeroDivisionError:
                raise NoArithmetic("a division by zero") from None
    raise NoArithmetic(ast.unparse(tree))


def numbers_in(tree: ast.expr) -> list[Fraction]:
    """Return the numbers in a tree."""
    return [Fraction(str(node.value)) for node in ast.walk(tree) if isinstance(node, ast.Constant)]


def to_python(tree: ast.expr, name_of: Callable[[Fraction], str | None]) -> str:
    """Write a tree as Python. name_of: returns the variable for a number, None for the number itself."""

    class Named(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.expr:
            value = Fraction(str(node.value))
            if name := name_of(value):
                return ast.Name(name)
            return ast.Constant(int(value)) if value.denominator == 1 else node

        def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
            inner: ast.expr = self.visit(node.operand)
            return inner if isinstance(node.op, ast.UAdd) else ast.UnaryOp(node.op, inner)

    return ast.unparse(Named().visit(ast.parse(ast.unparse(tree), mode="eval").body))


def plain_number(text: str) -> str:
    """Format a printed number as people write it: `24.0` is 24, `0.30000000000000004` is 0.3; keep other text."""
    try:
        value = float(text)
    except ValueError:
        return text.strip()
    near = round(value, 6)
    if not abs(value) < 1e15 or abs(value - near) > 1e-9 * max(1.0, abs(value)):
        return text.strip()
    return str(int(near)) if near == int(near) else repr(near)


OPEN = "<<"
_MONEY = r"[$€£]?"
_NUMBER = r"\d(?:[\d,]*\d)?(?:\.\d+)?|\.\d+"
_FORMULA = r"[$€£(\d.+\-–−][\d\s.,$€£%*/xX×÷+\-–−()]*?"
_STEP = re.compile(
    rf"(?P<formula>{_FORMULA})?\s*(?P<equals>=?)\s*{_MONEY}\s*"
    rf"<<(?P<left>[^<>]*?)=(?P<right>[^<>=]*)>>\s*{_MONEY}(?:{_NUMBER})?%?"
    rf"|(?P<plain>{_FORMULA})\s*=\s*{_MONEY}(?P<result>{_NUMBER})"
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
"""Numbers that a solution may add: small ones, of hours, days, weeks and years, ounces, feet, cents, shares."""
_BECAUSE = r"\s*,?\s*(?:because|since|as)\s+(?:of\s+)?{name}\s*(?=[.,;]|$)"


class Unusable(Exception):
    """A solution that makes no program; the message is the reason, equal for equal reasons."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program. words: the variable's description, in a line; "" if an earlier step has the sentence.
    expression: Python. value: exact. uses: names of the steps in it."""

    name: str
    words: str
    expression: str
    value: Fraction
    uses: frozenset[str] = frozenset()

    @property
    def code(self) -> str:
        return f"{self.name} = {self.expression}"


def read_steps(solution: str, question: str, answer: str) -> tuple[Step, ...]:
    """Read an annotated solution's steps, up to the last with the answer.

    If none gives the answer, all steps are returned. Raises Unusable.
    """
    if OPEN not in solution:
        raise Unusable("no annotated step")
    lines = [line.strip() for line in solution.partition("\n####")[0].splitlines()]
    steps = _Reader(question).read([(line, found) for line in lines if (found := _steps_in(line))])
    if not steps:
        raise Unusable("no step that is arithmetic")
    wanted = parse_rational(answer)
    right = [n for n, step in enumerate(steps) if step.value == wanted]
    return tuple(steps[: right[-1] + 1] if right else steps)


@dataclass(frozen=True, slots=True)
class _StepMatch:
    """A step in its line. text: its place in the sentence, {} for the variable."""

    start: int
    end: int
    tree: ast.expr
    text: str


class _Reader:
    """Reader of one solution."""

    def __init__(self, question: str) -> None:
        self._asked = frozenset(_numbers(question))
        self._steps: list[Step] = []
        self._later: Counter[Fraction] = Counter()
        """Numbers of the steps that are yet to be read."""
        self._in_words: frozenset[Fraction] = frozenset()
        """Numbers of the current line, outside of its arithmetic."""

    def read(self, lines: Sequence[tuple[str, Sequence[_StepMatch]]]) -> list[Step]:
        """Read the steps of lines."""
        self._later = Counter(n for _, found in lines for one in found for n in numbers_in(one.tree))
        for line, found in lines:
            before = len(self._steps)
            self._in_words = frozenset(_numbers(_without(line, found)))
            if new := [one for one in found if self._add(one.tree)]:
                words = self._words(line, new, before)
                if _UNKNOWN.search(words):
                    raise Unusable("an equation with an unknown, which is not a program")
                self._steps[before] = replace(self._steps[before], words=words)
        return self._steps

    def _add(self, tree: ast.expr) -> bool:
        """Add the tree as a step; return False if it only repeats an earlier result."""
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
        expression = to_python(tree, name_of)
        if expression in uses:
            return False
        self._steps.append(Step(name, "", expression, value_of(tree), frozenset(uses)))
        return True

    def _name(self, value: Fraction, uses: Collection[str]) -> str | None:
        """Return the newest step of that value, if possible one not in this expression. uses: names in it.

        A number that the question has too is the question's, unless the step comes right before and the sentence does
        not contain that number, or no other step uses it.
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
        at_once = name == self._steps[-1].name and value not in self._in_words
        return name if at_once or self._later[value] <= 0 else None

    def _given(self, value: Fraction) -> bool:
        """Return whether a number follows from the question: it is there, it is a share or the rest of one that is
        there, or it is common knowledge."""
        known = {value, 100 * value, 100 - value, 100 - 100 * value, 100 * value - 100, value - 100}
        return not known.isdisjoint(self._asked) or value in COMMON or 1 / (value or 1) in COMMON

    def _words(self, line: str, found: Sequence[_StepMatch], before: int) -> str:
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
        """Put variables in place of results: of the steps of this line, and of those before it."""
        names = {step.value: step.name for step in (*reversed(self._steps[before:]), *self._steps[:before])}

        def put(match: re.Match[str]) -> str:
            value = parse_rational(match["number"])
            return match[0] if value is None or value in self._asked else names.get(value, match[0])

        return _IN_TEXT.sub(put, text)


def _steps_in(line: str) -> list[_StepMatch]:
    """Find the steps of a line: annotated ones, and equations with the right result (`54*5 = $270`)."""
    found: list[_StepMatch] = []
    for match in _STEP.finditer(line):
        own = _read(match["formula"] or match["plain"])
        if match["left"] is None:
            if (
                own is not None
                and not isinstance(own, ast.Constant)
                and value_of(own) == parse_rational(match["result"])
            ):
                found.append(_StepMatch(match.start(), match.end(), own, "{}"))
            continue
        tree = _read(match["left"])
        if tree is None:
            raise Unusable("a step that is not arithmetic")
        if isinstance(tree, ast.Constant) and own is not None and not isinstance(own, ast.Constant):
            tree = own  # `287 x 4 = <<1148=1148>>`
        # The program has the sentence's computation; other text stays.
        same = own is not None and value_of(own) == value_of(tree)
        if same:
            found.append(_StepMatch(match.start(), match.end(), tree, "{}"))
        else:
            kept = match["formula"] or ""
            text = f"{kept.rstrip()} = {{}}" if match["equals"] else f"{kept} {{}}"
            found.append(_StepMatch(match.start(), match.end(), tree, text))
    return found


def _without(line: str, found: Sequence[_StepMatch]) -> str:
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
    """Return the numbers of a text, in digits or in words."""
    in_digits = (parse_rational(match[0]) for match in re.finditer(_NUMBER, text))
    in_words = (_IN_WORDS.get(word) for word in re.findall("[a-z]+", text.lower()))
    return [value for value in (*in_digits, *in_words) if value is not None]


Reasoning = Literal["comments", "before", "none"]
_PROGRAM_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


def words_and_code(steps: Sequence[Step], reasoning: Reasoning) -> tuple[str, str]:
    """Return the program, which prints the result, and the text before it."""
    lines: list[str] = []
    for step in steps:
        if step.words and reasoning == "comments":
            lines.append(f"# {step.words}")
        lines.append(step.code)
    words = "\n".join(step.words for step in steps if step.words) if reasoning == "before" else ""
    return words, "\n".join([*lines, f"print({steps[-1].name})"])


def _parenthesis(code: str, _steps: Sequence[Step], _rng: random.Random) -> str:
    return code.removesuffix(")")


def _undefined(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    """Leave out a step whose variable is used."""
    step = rng.choice([one for one in steps if any(one.name in other.uses for other in steps)] or [steps[-1]])
    return "\n".join(line for line in code.splitlines() if line != step.code)


def _too_early(code: str, steps: Sequence[Step], _rng: random.Random) -> str:
    """Print a variable that no step has."""
    return code.replace(f"print({steps[-1].name})", f"print(x{len(steps) + 1})")


def _misspelt(code: str, _steps: Sequence[Step], rng: random.Random) -> str:
    return code.replace("print(", rng.choice(("pint(", "prin(", "printf(", "show(")))


def _not_imported(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    name = steps[-1].name
    return code.replace(f"print({name})", f"print({rng.choice(('math.floor', 'math.ceil', 'np.round'))}({name}))")


def _money(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    return _on_a_number(code, steps, rng, lambda number: f"${number}")


def _percent(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    """Put % behind a number: `20% * x1` is Python, though not what was meant; the sandbox shows whether it fails."""
    return _on_a_number(code, steps, rng, lambda number: f"{number}%")


def _quoted(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    return _on_a_number(code, steps, rng, lambda number: f'"{number}"')


def _on_a_number(code: str, steps: Sequence[Step], rng: random.Random, change: Callable[[str], str]) -> str:
    places = [(step, match) for step in steps for match in _PROGRAM_NUMBER.finditer(step.expression)]
    if not places:
        return code
    step, match = rng.choice(places)
    changed = step.expression[: match.start()] + change(match[0]) + step.expression[match.end() :]
    return code.replace(step.code, f"{step.name} = {changed}")


_BROKEN = (_parenthesis, _undefined, _too_early, _misspelt, _not_imported, _money, _percent, _quoted)


def failing_variants(code: str, steps: Sequence[Step], rng: random.Random) -> Iterator[str]:
    """Yield distinct variants of a program that are likely to fail. Their order is drawn from `rng`; the sandbox shows
    whether one does. At least two do (a name that is not there)."""
    for change in rng.sample(_BROKEN, len(_BROKEN)):
        changed = change(code, steps, rng)
        if changed != code:
            yield changed
