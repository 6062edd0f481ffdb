r"""The answer of a reply that marks none: what it says that the answer is, or the one number or formula of its last
sentence.

Math-Verify by itself takes the last number or formula of a text, wherever it stands: of 493 replies of a small model to
MATH-500 that were no answers at all, five were right that way. To reward those is to teach that any number will do.
"""

from __future__ import annotations

import re

from retcon.tasks.graders.text import aloud

READ = 4000  # characters of a reply's end that are looked at
_SAID = re.compile(r"\banswers?\b[^\n.:=]{0,60}?(?:\b(?:is|are)\b(?: ?:)?|[:=])[*\s]*", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_NUMBER = re.compile(
    r"(?<![^\s(*$€£=~-])(?:[-+] ?)?[$€£]? ?(?:\d{1,3}(?:,\d{3})++|\d++)?(?:\.\d++|(?<=\d))(?:/\d++)?(?: ?\\?%)?"
    r"(?![^\s.,;:!?)*°$€£])"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_FUNCTIONS = frozenset({"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "frac", "text", "infty"})
_AROUND = "*_#>~` \t"
_ITEM = re.compile(r"(?:\d{1,2}[.)]|[-*•=])\s+(?=\S)")
_CURRENCY = "$€£ "
_END = re.compile(r"[.!?]\**\s+(?=\S)")
_DISPLAYS = (("\\[", "\\]"), ("$$", "$$"))


def stated(reply: str) -> str | None:
    """The answer, without what marks it as a formula; None where the reply states none, or several."""
    text = aloud(reply[-READ:]).replace("−", "-").replace(r"\$", "").rstrip()  # money, within formulas and without
    for said in list(_SAID.finditer(text))[-1:]:
        found = _first(text[said.end() :].lstrip().partition("\n")[0])
        if found is not None:
            return found
    return _displayed(text) or _only(_END.split(text.rpartition("\n")[2])[-1])


def _first(line: str) -> str | None:
    """What a text begins with that comes right after `the answer is`, or has alone."""
    begins = _FORMULA.match(line) or (None if _is_formula(line) else _NUMBER.match(line))
    return _only(line) if begins is None else _inside(begins)


def _only(line: str) -> str | None:
    line = line.strip(_AROUND)
    if (item := _ITEM.match(line)) is not None:
        line = line[item.end() :]
    line = line.rstrip("." + _AROUND)
    if _is_formula(line):
        return line.strip(_CURRENCY) or None
    formulas = list(_FORMULA.finditer(line))
    rest = _FORMULA.sub(" ", line)
    if formulas:
        return _inside(formulas[0]) if len(formulas) == 1 and not _numbers(rest) else None
    numbers = _numbers(rest.rpartition("=")[2])
    return numbers[0] if len(numbers) == 1 else None


def _displayed(text: str) -> str | None:
    """A formula set apart at the end, over several lines."""
    text = text.rstrip(". \n")
    for opens, closes in _DISPLAYS:
        if text.endswith(closes):
            begin = text.rfind(opens, 0, len(text) - len(closes))
            return text[begin + len(opens) : -len(closes)].strip() or None if begin >= 0 else None
    return None


def _is_formula(line: str) -> bool:
    """Whether a line has no word, something to read, and no more than one formula that is marked."""
    words = {word.lower() for word in _WORD.findall(_FORMULA.sub(" ", line))}
    return words <= _FUNCTIONS and any(char.isalnum() for char in line) and line.count("$") <= 2


def _inside(found: re.Match[str]) -> str | None:
    inner = next(filter(None, found.groups()), "") if found.re is _FORMULA else found[0]
    return inner.strip(_CURRENCY) or None


def _numbers(text: str) -> list[str]:
    return [found[0].strip(_CURRENCY) for found in _NUMBER.finditer(text) if any(char.isdigit() for char in found[0])]
