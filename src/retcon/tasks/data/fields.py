"""What is read out of a row: a question, what tells right answers, and where from."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from retcon.core.errors import RetconError
from retcon.tasks.graders.text import MARK, final_answer
from retcon.tasks.grading.cases import as_printed, plain

Columns = Mapping[str, Any]
Told = tuple[tuple[str, str], ...]
"""Messages, (role, text)."""
NO_MARKS = ("0", "0.0", "false", "no")
"""In a column of marks."""
_KEYS = ({"role", "content"}, {"from", "value"})
"""Of a message; of the second sort it is refused by name."""
_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:.*\}\s*\]\s*""", re.DOTALL)
"""A text that is meant as a list of messages."""


class Row(NamedTuple):
    """where: file and line, item or row, for messages. number: of that line. before: the columns that any row before it
    has."""

    columns: dict[str, Any]
    number: int
    where: str
    before: frozenset[str] = frozenset()

    @property
    def new(self) -> Set[str]:
        """Its columns that no row before it has: one of them may be meant by a column that it lacks."""
        return self.columns.keys() - self.before


class Moment(str):
    """A time, date or duration as text, of a column of such a type, which does not keep how it was written."""


class DataError(RetconError):
    """Data cannot serve as tasks: names the file, the line, the column, and the nearest valid choice."""


class Misfit(Exception):
    """A row's column cannot be read. Whoever knows the row's file and line makes a `DataError` of it."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column '{column}' {why}")
        self.column = column


@dataclass(frozen=True, slots=True)
class Item:
    """A row, read.

    answer: "" where it has none. grader: that the row itself names, "" where it names none. source: the data set that
    the row says it is from. reference: a worked solution. before: what is said before the question, (role, text). meta:
    what else graders or people may want to know. named_by: whether the answer names an option by its `text` or its
    `index`, "" where it does not, or may be either. asked_with: the columns whose text is part of the question, though
    another holds it. unread: why its grader cannot read the answer, "" where it can. cases: where tests of a program
    stand in the answer's place, their text: the answer to whatever grades it, but for `code`, which finds them in meta.
    said: the answer as the row has it, where `answer` is the letter of the option that it names, else "". bare: the
    question without words of ours on how to answer, "" where there are none.
    """

    question: str
    answer: str
    id: str = ""
    system: str | None = None
    grader: str = ""
    source: str = ""
    reference: str = ""
    before: Told = ()
    meta: Columns = field(default_factory=dict)
    named_by: str = ""
    asked_with: tuple[str, ...] = ()
    unread: str = ""
    cases: str = ""
    said: str = ""
    bare: str = ""


def missing(value: object) -> bool:
    """None, and what a table holds where it holds nothing."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def empty(value: object) -> bool:
    """What is missing, and lists and objects that hold nothing, as they are or as JSON."""
    return missing(value) or value in ([], {}, "[]", "{}")


def marks(value: object) -> bool:
    """Whether a row is marked by what stands in such a column: anything but nothing, and words and numbers for no."""
    said = value.strip().lower() if isinstance(value, str) else value
    return not (missing(said) or said in (0, [], {}) or said in NO_MARKS)


def text(row: Columns, column: str) -> str:
    """A text, or a number or truth as text; "" where there is none. Raises Misfit."""
    value = row.get(column)
    if missing(value):
        return ""
    if isinstance(value, Moment):
        kind = f"is of a type for times and dates, in which 9:05 reads as 09:05:00, found '{value}'"
        raise Misfit(column, f"{kind}: write the column as text (in DuckDB, read it as VARCHAR)")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | int | float):
        return in_full(value[0])
    if not isinstance(value, int | float):
        raise Misfit(column, f"is {_kind(value)}, where text or a number belongs")
    return in_full(value)


def in_full(value: object) -> str:
    """As text, a number in plain decimals: `1e-07` is the product of a letter to those who read formulas."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    return str(value)


def written_out(value: object) -> object:
    """The list or object that is a text, as in a cell of a CSV: as JSON, or as Python writes them; else the value."""
    try:
        return plain(value)
    except (ValueError, RecursionError):
        return value


def objects(row: Columns, column: str) -> Columns:
    """An object. Raises Misfit."""
    value = written_out(row.get(column))
    if not isinstance(value, dict):
        raise Misfit(column, f"is {_kind(value)}, where an object belongs")
    return value


def prompt(row: Columns, column: str) -> tuple[str | None, Told, str]:
    """System prompt, what is said before the question, and the question, of text or of messages: those end with one of
    the user, before which user and assistant take turns (worked examples). Raises Misfit for other conversations."""
    value = _messages(row.get(column), column)
    if not isinstance(value, list):
        return None, (), text({column: value}, column)
    told: list[tuple[str, str]] = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Misfit(column, "is a list, but not of messages with role and content")
        told.append((message["role"], _content(message.get("content"), column)))
    system = told.pop(0)[1] if told and told[0][0] in ("system", "developer") else None
    for n, (role, _) in enumerate(told):
        if role != ("user", "assistant")[n % 2]:
            raise Misfit(column, f"has a message of the role '{role}' as its {_place(n, system)}: after a system "
                         "message, if any, user and assistant take turns, and the user has the last word")  # fmt: skip
    if len(told) % 2 == 0:
        raise Misfit(column, "does not end with a message of the user, which is the question")
    return system, tuple(told[:-1]), told[-1][1]


def _messages(value: object, column: str) -> object:
    """The messages that are a text (`written_out`), else the value. Raises Misfit for a text that is meant as a list of
    them and cannot be read."""
    if not isinstance(value, str):
        return value
    found = written_out(value)
    first = found[0] if isinstance(found, list) and found else found
    if found == [] or (isinstance(first, dict) and any(keys <= first.keys() for keys in _KEYS)):
        return found
    if found is value and _MESSAGES.fullmatch(value):
        raise Misfit(column, as_printed(value) or f"is meant as messages, and can be read neither as JSON nor as lists "
                     f"that Python writes: {value!r:.40}")  # fmt: skip
    return value


def _place(n: int, system: str | None) -> str:
    number = n + 1 + (system is not None)
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"


def marked(answer: str) -> tuple[str, str]:
    r"""(final answer, worked solution): of a text that ends in `#### 72` or holds a `\boxed{72}` the answer marked, and
    the text; of any other, itself and ""."""
    if ends_in_mark(answer) or "\\boxed" in answer:
        return (final_answer(answer) or "").strip(), answer
    return answer.strip(), ""


def ends_in_mark(answer: str) -> bool:
    """Whether the last line is `#### …`, as in GSM8K."""
    return answer.rstrip().rpartition("\n")[2].startswith(MARK)


def _content(value: object, column: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(part, dict) and part.get("type") == "text" for part in value):
        return "".join(str(part.get("text", "")) for part in value)
    raise Misfit(column, "holds a message that is not text: images and the like are not read")


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    name = names.get(type(value), type(value).__name__)
    return f"{name} of {len(value)}" if isinstance(value, list | dict) else name


# What makes two questions the same, and the words that overlap is counted in. Linear in the text.
#
# `$x = 1$` and `\[x=1.\]` are the same question, `\cos 150^\circ` and `\cos(-150^\circ)` are not: only layout is taken
# away, never a digit, a sign or a name.

_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad)(?![A-Za-z])"  # how formulas are set
    r"|\\[\[\]()]|\\?\$"  # where formulas begin and end
    r"|\\[,;:! ]"  # space within them
)
_ALIASES = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\neq": r"\ne", r"\leq": r"\le", r"\geq": r"\ge"}
_ALIAS = re.compile(r"\\(?:dfrac|tfrac|neq|leq|geq)(?![A-Za-z])")
_CAPITAL = re.compile(r"(?<![\\\w])[A-Z](?=[a-z]{2})")  # of a word: `A`, `AB` and `\Delta` are names
_IDLE_SPACE = re.compile(r" (?!\w)|(?<!\w) ")
_WORD = re.compile(r"[^\W_]+")
_APART = {"<super>": "^", "<sub>": "_", "<fraction>": " "}
_MARKED = {
    code: f"{_APART[kind]}{chr(code)}"
    for code in range(0x80, 0x3000)
    if (kind := unicodedata.decomposition(chr(code)).partition(" ")[0]) in _APART
}
"""Characters that Unicode takes for plain ones at another height, with what keeps them apart: `2²` is not `22`."""


NAMED = 12
"""Digits of its key that a question without an id is named by."""


def canonical(question: str) -> str:
    """The question without what is mere layout: space, marks of formulas, capitals that begin words, a full stop."""
    text = _plain(question)
    text = _ALIAS.sub(lambda found: _ALIASES[found[0]], _LAYOUT.sub(" ", text))
    text = _CAPITAL.sub(lambda found: found[0].lower(), text)
    return _IDLE_SPACE.sub("", " ".join(text.split())).rstrip(" .?")


def key(question: str) -> str:
    """32 hexadecimal digits that tell a question, but for layout: the same on every machine."""
    return hashlib.sha256(canonical(question).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case; those of drawings (`[asy] … [/asy]`) are none."""
    begun = text.split("[asy]")
    told = " ".join([begun[0], *(part.partition("[/asy]")[2] or part for part in begun[1:])])
    return _WORD.findall(_plain(told).casefold())


def _plain(text: str) -> str:
    """In characters that are not mere forms of others."""
    return unicodedata.normalize("NFKC", text.translate(_MARKED))
