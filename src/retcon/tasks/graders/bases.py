r"""Numbers that are written with their base: `52_8`, `52_{\text{eight}}`, `(52)_8`, `52₈`, `52 in base 8`, `0x2A`.

Math-Verify reads the digits and ignores the base. Pure functions; no pattern goes back over what it has read, as it is
a model that writes the text.
"""

from __future__ import annotations

import re
from fractions import Fraction

from retcon.tasks.graders.text import MOST_DIGITS, aloud, final_answer

TEN = 10  # the base of a number without one
LARGEST = 36  # in which Python reads digits
_DIGIT = "(?:[\\dac-f]|b(?!ase))"
_DIGITS = rf"(?:([+-])\s*+)?(?=[a-f]*\.?\d)({_DIGIT}++(?:,{_DIGIT}{{3,4}})*+(?:\.{_DIGIT}++)?|\.{_DIGIT}++)"
_BASE = r"\s*+(?:_\s*+(?:base)?|(?:in\s*+)?base)[\s-]*+(\w++)"
_NUMBER = re.compile(rf"(?<![\w.,]){_DIGITS}{_BASE}", re.ASCII | re.IGNORECASE)
_HEXADECIMAL = re.compile(r"(?<![\w.,])0x([\da-f]++)(?!\w)", re.ASCII | re.IGNORECASE)
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NOTHING = re.compile(r"\\[,;:!]|\{,\}|\\(?:text|math)[a-z]*|\\(?:mbox|rm|left|right)\b|[{}]")
_SPACE = re.compile(r"\\ |[()$~]")
_SUBSCRIPT = re.compile("[₀-₉]+")
_PLAIN_DIGITS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_BEHIND_BOX = re.compile(r"\}(_(?:\w|\{\w+\}))")


def same_in_base(answer: str, reply: str) -> bool | None:
    r"""Whether the reply's answer is the same number in the same base; None where `answer` is written with none.

    A reply without a base is in base ten: neither MATH's own grader nor PRM800K's takes `52` for `52_8`.
    """
    ours = _in_base(final_answer(answer) or answer)
    if ours is None:
        return None
    said = final_answer(_BEHIND_BOX.sub(r"\1}", reply))
    theirs = _in_base(said) if said is not None else _last_in_base(aloud(reply))
    return None if theirs is None and ours[1] == TEN else theirs == ours


def _in_base(text: str) -> tuple[Fraction, int] | None:
    """The value and the base of the number that `text` is; None where it is none, or is written without its base."""
    found = _NUMBER.fullmatch(_without_markup(text.rpartition("=")[2]).lstrip("*` \t\n").rstrip("*` .\n"))
    return _value(found) if found else None


def _last_in_base(text: str) -> tuple[Fraction, int] | None:
    """The last such number in a text that marks no answer."""
    read = (_value(found) for found in _NUMBER.finditer(_without_markup(text)))
    return next(reversed([one for one in read if one is not None]), None)


def _without_markup(text: str) -> str:
    text = _SUBSCRIPT.sub(lambda found: "_" + found[0].translate(_PLAIN_DIGITS), text)
    return _HEXADECIMAL.sub(r"0\1_16", _SPACE.sub(" ", _NOTHING.sub("", text)))


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
