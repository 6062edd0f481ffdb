r"""Answers without a mark: `the answer is …`, or the last sentence's only number or formula.

Math-Verify by itself takes the last number or formula of a text, wherever it stands: of 493 replies of a small model to
MATH-500 without any answer, five were right that way. Rewards for those teach a model to write any number.
"""

from __future__ import annotations

import re

from retcon.tasks.graders.quantities import (
    EACH,
    ENDS,
    LETTERS,
    RAISABLE,
    changes_number,
    parse_measures,
    shorten_meridiem,
)
from retcon.tasks.graders.symbols import BOLD, FORMULA
from retcon.tasks.graders.text import SPECIAL, strip_thinking

READ = 4000  # characters of a reply's end that are read
_ANSWER_IS = re.compile(
    r"(?<!check our )(?<!check the )(?<!verify our )(?<!verify the )\banswers?\b"
    r"[^\n.:=]{0,60}?(?:\b(?:is|are)\b(?: ?:)?|[:=])[*\s]*",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?(?!su[bp]\b)[A-Za-z][\w-]*/?>")  # 10<sup>3</sup> is not 10
_NUMBER = re.compile(
    r"(?<![^\s(*$€£=~-])(?:[-+] ?)?\\?[$€£]? ?"
    r"(?:\d{1,2}:[0-5]\d(?::[0-5]\d)?|"
    r"(?:\d{1,3}(?:,\d{3})++|"
    r"\d{1,3}(?:[ \u00a0\u2007\u2009\u202f]\d{3})++(?![\d/]|-[A-Za-z])|\d{1,3}(?:\.\d{3})++(?=,\d)|\d++)?"
    r"(?:\.\d++|(?<=\d)(?:,\d++(?! ?\)))?)(?:/\d++)?(?: ?\\?%)?)"
    r"(?![^\s.,;:!?)*°$€£A-Za-z/-])(?![A-Za-z]\w*\d|[.,]\d|[xX][a-fA-F]++\b)"  # 0xA
)
_MORE = re.compile(r"\s*(?:\([^()]*\)\s*)?[-+*×·÷/x]\s?\\?[$€£]?\d")  # 12 laps (of 1 mile) + 1
_LETTERED = re.compile(rf"(?:[^\\$]*\d[^\\$=]*=\s*)?({_NUMBER.pattern})\s+({LETTERS})")  # 4*5 = 20 m
_SCALE = re.compile(r"\s?°\s?[CF](?![A-Za-z])")
_OPERATOR = re.compile(r"\s*(?:[+*×·÷^=<>−]|[-/](?!\s?[A-Za-z])|[x:]\s?\\?[$€£\d]|\\(?:times|cdot|div|pm))")
_REST = re.compile(r"\s*(?:°|/\s?)?-?([A-Za-zÀ-ɏ]+)(?:\^\d|[’'][a-z]+)?")
_RAISED = re.compile(rf"(?!{RAISABLE}\^)[A-Za-z]{{2,3}}\^\d")  # mc^2
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TERM = re.compile(r"(?<=\d)[A-Za-z]{2,3}(?![A-Za-z])")  # 42xy
_FUNCTIONS = frozenset({"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "frac", "text", "infty"})
_COMMAND = re.compile(r"\\[A-Za-z]+\s*(?:\{[^{}]*\})?")
_AROUND = "*_#>~` \t"
_END = re.compile(r"[.!?]\**\s+(?=[^\sa-z])")
_REASON = re.compile(r"[.!?][*_]*\s+(?=[^\sa-z])|;\s|\s+\((?=[A-Za-z][^()]*\)\W*$)|,?\s+(?:because|since)\s(?=[^,]*$)")
_CLAUSE = re.compile(rf"{_REASON.pattern}|,\s+(?!or\b|and\b|\d)")
_FOLLOWS = re.compile(r"\s*(?:,\s*)?(?:(?:and|or)\s+|,\s*)")
_JOINED = re.compile(r"\s*\$?,?\s*\b(?:and|or|to|out of|in|of)\s+(?:a\s+)?(?:half\b|another\b|maybe\b|[-\\$€£]{0,2}\d)")
_AND = re.compile(r"\s*,?\s*(?:and|or|to)\b")
_FACTOR = re.compile(rf"(?:\w+\s)*times\b(?!\s+(?:{EACH.pattern})\b)", re.IGNORECASE)
_AS_MANY = re.compile(r"\s*(?:\$|as|more|that|than|of|what)(?![A-Za-z])")
_NAME = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+){0,3}")
_DISPLAYS = (("\\[", "\\]"), ("$$", "$$"))


def find_stated(reply: str) -> str | None:
    """Find a stated answer, without formula marks; None for none or several."""
    text = SPECIAL.sub(" ", strip_thinking(reply[-READ:])).rstrip()
    text = shorten_meridiem(_TAG.sub(" ", text).replace("−", "-"))
    words = None
    for match in list(_ANSWER_IS.finditer(text))[-1:]:
        line = text[match.end() :].lstrip().partition("\n")[0]
        found = _first(line)
        if found is not None:
            return found
        words = _name(line)
    return _displayed(text) or _only(_END.split(text.rpartition("\n")[2])[-1]) or words


def _name(line: str) -> str | None:
    """Return an answer of a few words: `The answer is New York.`"""
    name = _CLAUSE.split(line)[0].strip(". " + _AROUND)
    return rf"\text{{{name}}}" if _NAME.fullmatch(name) else None


def _first(line: str) -> str | None:
    """Return the answer at the beginning of the text after `the answer is`, or its only one."""
    line = BOLD.sub(r"\1", line).strip(_AROUND)
    formula = FORMULA.match(line)
    if formula is not None:
        return _formulas(line, formula)
    if not _is_formula(line):
        clause = _CLAUSE.split(line)[0]
        begins = _NUMBER.match(clause) if "=" not in FORMULA.sub("", clause) else None
        if begins is not None and begins[0].strip():
            return _number(clause, begins)
    return _only(line)


def _only(line: str) -> str | None:
    line = BOLD.sub(r"\1", line).strip(_AROUND)
    line = line.rstrip("." + _AROUND)
    if _is_formula(line):
        lettered = _LETTERED.fullmatch(line)
        if lettered is not None:
            return rf"{lettered[1].strip()} \text{{{lettered[2]}}}"
        alone = FORMULA.fullmatch(line)
        return (_inside(alone) if alone is not None else line.strip()) or None
    formulas = list(FORMULA.finditer(line))
    if formulas:
        rest = FORMULA.sub(" ", line)
        before = line[: formulas[0].start()]
        if len(formulas) > 1 or _numbers(rest) or changes_number(before):
            return None
        return _formulas(line, formulas[0])
    _, so, follows = line.rpartition(" so ")
    if so and _numbers(follows):
        return _clause(follows)
    claim = _REASON.split(line)[0]
    return _clause(claim if len(_numbers(claim)) == 1 or "=" in claim else line)


def _clause(line: str) -> str | None:
    """Return the text after the last `=`, or the only number, with its unit."""
    _, equals, line = line.rpartition("=")
    line = line.lstrip()
    numbers = _numbers(line)
    if not numbers or changes_number(line[: numbers[0].start()]):
        return None
    several = line[numbers[0].start() :]
    if len(numbers) > 1 and parse_measures(several) is not None:
        return several
    return _number(line, numbers[0]) if len(numbers) == 1 or (equals and numbers[0].start() == 0) else None


def _number(text: str, found: re.Match[str]) -> str | None:
    """Return a number with its unit; None inside a calculation or an ambiguous number."""
    scale = _SCALE.match(text, found.end())
    end = found.end() if scale is None else scale.end()
    number, rest = text[found.start() : end].strip(), text[end:]
    if parse_measures(text[found.start() :]) is not None:
        return text[found.start() :]
    if _OPERATOR.match(rest) or _JOINED.match(rest):
        return None
    unit, after = _unit(rest)
    share = number.endswith("%") or unit.casefold() in ("percent", "per cent", "pct")
    if _JOINED.match(after) and (not unit or share or _AND.match(after)):
        return None
    return _counted(number, unit, after)


def _counted(value: str, unit: str, after: str) -> str | None:
    """Return a number or formula with its unit; None for a factor (`5 times as many`) or inside a calculation."""
    if _MORE.match(after):
        return None
    if _FACTOR.match(unit) and (_AS_MANY.match(after) or not unit.endswith("times")):
        return None
    if _RAISED.fullmatch(unit):
        return f"{value} {unit}"
    return rf"{value} \text{{{unit}}}" if unit else value or None


def _unit(rest: str) -> tuple[str, str]:
    """Split a text before the first word that ends a unit."""
    at = 0
    while (word := _REST.match(rest, at)) is not None and not ENDS.fullmatch(word[1].casefold()):
        at = word.end()
    return rest[:at].strip(), rest[at:]


def _formulas(line: str, found: re.Match[str]) -> str | None:
    """Return a formula with its unit, or several: `$2$ and $3$`."""
    formulas, at = [_inside(found)], found.end()
    while (joins := _FOLLOWS.match(line, at)) is not None and (more := FORMULA.match(line, joins.end())) is not None:
        formulas.append(_inside(more))
        at = more.end()
    rest = line[at:]
    if _OPERATOR.match(rest):
        return None
    unit, after = _unit(rest)
    return None if _JOINED.match(after) else _counted(", ".join(formulas), unit, after)


def _displayed(text: str) -> str | None:
    """Return a displayed formula at the end."""
    text = text.rstrip(". \n")
    for opens, closes in _DISPLAYS:
        if text.endswith(closes):
            begin = text.rfind(opens, 0, len(text) - len(closes))
            return text[begin + len(opens) : -len(closes)].strip() or None if begin >= 0 else None
    return None


def _is_formula(line: str) -> bool:
    """Return whether a line has no words, but letters or digits, and at most one marked formula."""
    plain = FORMULA.sub(" ", line)
    plain = _COMMAND.sub(" ", _TERM.sub(" ", plain) if "^" in plain else plain)
    words = {word.lower() for word in _WORD.findall(plain)}
    several = len(FORMULA.findall(line)) > 1 or line.replace(r"\$", "").count("$") > 2
    return words <= _FUNCTIONS and any(char.isalnum() for char in line) and not several


def _inside(found: re.Match[str]) -> str:
    return next(filter(None, found.groups()), "").strip()


def _numbers(text: str) -> list[re.Match[str]]:
    return [found for found in _NUMBER.finditer(text) if any(char.isdigit() for char in found[0])]
