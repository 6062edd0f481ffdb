"""Readers of a row's fields: question, answer, tests, messages."""

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
from retcon.tasks.grading.cases import numpy_error, parse_value

Columns = Mapping[str, Any]
Messages = tuple[tuple[str, str], ...]
"""Messages, (role, text)."""
NO_MARKS = ("0", "0.0", "false", "no")
"""Values of a column of marks that mark nothing."""
_KEYS = ({"role", "content"}, {"from", "value"})
"""Keys of a message; the second kind is recognised to be refused by name."""
_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:.*\}\s*\]\s*""", re.DOTALL)
"""A text that looks like a list of messages."""


class Row(NamedTuple):
    """One row of data. where: file and line, item or row, for errors. number: of that line. before: columns of earlier
    rows."""

    columns: dict[str, Any]
    number: int
    where: str
    before: frozenset[str] = frozenset()

    @property
    def new(self) -> Set[str]:
        """Return its columns that earlier rows lack; one may stand for a missing column."""
        return self.columns.keys() - self.before


class Moment(str):
    """Text of a time, date or duration, whose original notation is lost."""


class DataError(RetconError):
    """Data cannot serve as tasks: names file, line, column and the nearest valid choice."""


class ColumnError(Exception):
    """A row's column cannot be read; a caller that knows file and line raises a `DataError`."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column '{column}' {why}")
        self.column = column


@dataclass(frozen=True, slots=True)
class Item:
    """The fields of a row as read.

    answer: "" if missing. grader: named by the row, else "". source: data set named by the row. reference: a worked
    solution. before: earlier messages, (role, text). meta: other columns, for graders or people. named_by: whether the
    answer names an option by its `text` or its `index`, "" where it does not, or may be either. asked_with: further
    columns whose text is part of the question. unread: why its grader cannot read the answer, "" if it can. cases: the
    text of a program's tests where they stand in the answer's place: the answer for every grader except `code`, which
    finds them in meta. raw_answer: the row's own answer, where `answer` is the letter of that option, else "". bare:
    the question without Retcon's instructions on how to answer, "" without any.
    """

    question: str
    answer: str
    id: str = ""
    system: str | None = None
    grader: str = ""
    source: str = ""
    reference: str = ""
    before: Messages = ()
    meta: Columns = field(default_factory=dict)
    named_by: str = ""
    asked_with: tuple[str, ...] = ()
    unread: str = ""
    cases: str = ""
    raw_answer: str = ""
    bare: str = ""


def is_missing(value: object) -> bool:
    """Return whether a value is missing, such as a table's empty cell."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def is_empty(value: object) -> bool:
    """Return whether a value is missing, or empty, also as JSON."""
    return is_missing(value) or value in ([], {}, "[]", "{}")


def is_marked(value: object) -> bool:
    """Return whether a value of a marking column marks its row; false, no and 0 do not."""
    mark = value.strip().lower() if isinstance(value, str) else value
    return not (is_missing(mark) or mark in (0, [], {}) or mark in NO_MARKS)


def read_text(row: Columns, column: str) -> str:
    """Read a text, number or boolean as text; "" if missing. Raises ColumnError."""
    value = row.get(column)
    if is_missing(value):
        return ""
    if isinstance(value, Moment):
        kind = f"is of a type for times and dates, in which 9:05 reads as 09:05:00, found '{value}'"
        raise ColumnError(column, f"{kind}: write the column as text (in DuckDB, read it as VARCHAR)")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | int | float):
        return to_text(value[0])
    if not isinstance(value, int | float):
        raise ColumnError(column, f"is {_kind(value)}, where text or a number belongs")
    return to_text(value)


def to_text(value: object) -> str:
    """Render a value as text, numbers in plain decimals: a formula would read `1e-07` as a product."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    return str(value)


def parse_cell(value: object) -> object:
    """Parse a cell with a list or object. JSON and Python's notation are read; other values are returned unchanged."""
    try:
        return parse_value(value)
    except (ValueError, RecursionError):
        return value


def read_object(row: Columns, column: str) -> Columns:
    """Read an object. Raises ColumnError."""
    value = parse_cell(row.get(column))
    if not isinstance(value, dict):
        raise ColumnError(column, f"is {_kind(value)}, where an object belongs")
    return value


def read_prompt(row: Columns, column: str) -> tuple[str | None, Messages, str]:
    """Read text or messages as system prompt, earlier messages and question. User and assistant take turns (worked
    examples) up to the question, a last message of the user. Raises ColumnError for other conversations."""
    value = _messages(row.get(column), column)
    if not isinstance(value, list):
        return None, (), read_text({column: value}, column)
    messages: list[tuple[str, str]] = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ColumnError(column, "is a list, but not of messages with role and content")
        messages.append((message["role"], _content(message.get("content"), column)))
    system = messages.pop(0)[1] if messages and messages[0][0] in ("system", "developer") else None
    for n, (role, _) in enumerate(messages):
        if role != ("user", "assistant")[n % 2]:
            raise ColumnError(column, f"has a message of the role '{role}' as its {_place(n, system)}: after a system "
                         "message, if any, user and assistant take turns, and the user has the last word")  # fmt: skip
    if len(messages) % 2 == 0:
        raise ColumnError(column, "does not end with a message of the user, which is the question")
    return system, tuple(messages[:-1]), messages[-1][1]


def _messages(value: object, column: str) -> object:
    """Parse messages in text (`parse_cell`), else return the value. Raises ColumnError for a text that looks like
    messages and cannot be read."""
    if not isinstance(value, str):
        return value
    found = parse_cell(value)
    first = found[0] if isinstance(found, list) and found else found
    if found == [] or (isinstance(first, dict) and any(keys <= first.keys() for keys in _KEYS)):
        return found
    if found is value and _MESSAGES.fullmatch(value):
        raise ColumnError(column, numpy_error(value) or "is meant as messages, and can be read neither as JSON nor as "
                          f"lists that Python writes: {value!r:.40}")  # fmt: skip
    return value


def _place(n: int, system: str | None) -> str:
    number = n + 1 + (system is not None)
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"


def split_solution(answer: str) -> tuple[str, str]:
    r"""Split a text into final answer and worked solution. A text that ends in `#### 72` or holds a `\boxed{72}` is the
    solution of the marked answer; any other is the answer, without a solution."""
    if ends_in_mark(answer) or "\\boxed" in answer:
        return (final_answer(answer) or "").strip(), answer
    return answer.strip(), ""


def ends_in_mark(answer: str) -> bool:
    """Return whether the last line is `#### …`, as in GSM8K."""
    return answer.rstrip().rpartition("\n")[2].startswith(MARK)


def _content(value: object, column: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(part, dict) and part.get("type") == "text" for part in value):
        return "".join(str(part.get("text", "")) for part in value)
    raise ColumnError(column, "holds a message that is not text: images and the like are not read")


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    name = names.get(type(value), type(value).__name__)
    return f"{name} of {len(value)}" if isinstance(value, list | dict) else name


# When two questions are the same, and the words of their overlap. Linear in the text.
#
# `$x = 1$` and `\[x=1.\]` are the same question, `\cos 150^\circ` and `\cos(-150^\circ)` are not: only layout is
# removed, never a digit, a sign or a name.

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
"""Raised and lowered forms of plain characters, with a separator: `2²` is not `22`."""


NAMED = 12
"""Digits of its key that name a question without an id."""


def canonicalize(question: str) -> str:
    """Remove layout from a question: space, formula marks, initial capitals, a full stop."""
    text = _plain(question)
    text = _ALIAS.sub(lambda found: _ALIASES[found[0]], _LAYOUT.sub(" ", text))
    text = _CAPITAL.sub(lambda found: found[0].lower(), text)
    return _IDLE_SPACE.sub("", " ".join(text.split())).rstrip(" .?")


def question_key(question: str) -> str:
    """Hash a question without its layout: 32 hexadecimal digits, equal on every machine."""
    return hashlib.sha256(canonicalize(question).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def split_words(text: str) -> list[str]:
    """Split text into lower-case words, without drawings (`[asy] … [/asy]`)."""
    begun = text.split("[asy]")
    without = " ".join([begun[0], *(part.partition("[/asy]")[2] or part for part in begun[1:])])
    return _WORD.findall(_plain(without).casefold())


def _plain(text: str) -> str:
    """Replace compatibility characters by plain ones."""
    return unicodedata.normalize("NFKC", text.translate(_MARKED))
