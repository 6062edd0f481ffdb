r"""The letter of an option, in a marked answer (`B. Vitamin C`) and in a reply that marks none (`B is correct.`).

Pure functions of text without markup. A reply that names several letters as its choice has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPTION = r"(?:(?:[Oo]ption|[Cc]hoice)\s+)?"
_ALONE = re.compile(_OPTION + r"\(?([A-Za-z])\)?[.:]?")
_LABEL = re.compile(_OPTION + r"(?:\(([A-Za-z])\)[.:]?\s*|([A-Za-z])[.:)]\s+)(\S.*)", re.DOTALL)
_CAPITAL = r"(?:[B-HJ](?![A-Za-z'])|[AI](?=[\s*$)]*(?:[.,;:!?]|or\b|and\b|\Z)))"  # but not the words A and I
_NAMED = re.compile(
    r"\A([A-J])[.:]?\Z|"
    r"(?<![A-Za-z0-9])\(([A-Za-z])\)|(?<![A-Za-z\\])([A-J])(?=[.:)]\s+\S|\s+(?:is|was|seems|looks|fits)\b)"
    r"|(?:\b(?:or|and|is|but|no|wait|actually|rather|maybe|perhaps|also|both|either|[Oo]ption|[Cc]hoice|[Aa]nswer)\b"
    rf"|[,;/&>→])[\s*$]*({_CAPITAL})"
)
_SAID = re.compile(
    r"\b(?:[Aa]nswer|(?:[Cc]orrect|[Rr]ight|[Bb]est)\s+(?:option|choice))\b[^A-Za-z0-9(]{0,8}(?:is[^A-Za-z0-9(]{0,8})?"
    + _OPTION + r"[^A-Za-z0-9(]{0,4}(?:\(([A-Za-z])\)|([A-Z])(?![A-Za-z0-9]))"
)  # fmt: skip
_OR_ANOTHER = re.compile(
    r"[\s*$)]{0,4}(?:or\b|(?:and\b|[,/&])(?=[\s*$(]{0,6}[A-Z][\s*$)]{0,4}(?:[.,;!?]|or\b|and\b|\Z)))[\s*$(]{0,6}"
    + _OPTION + r"\(?[A-Z](?![A-Za-z0-9])"
)  # fmt: skip
_IS_RIGHT = re.compile(
    _OPTION + r"(?<![A-Za-z0-9\\])(?:\(([A-J])\)|([A-J]))[*\s]{1,4}is\s+(?:the\s+)?(?:correct|right|best)\b"
    r"(?:\s+(?:answer|option|choice|one)\b)?(?=[*\s]{0,4}(?:[.!;)\n]|\Z|,?\s?(?:because|since|as)\b))"
)  # fmt: skip
_CLAIMED = re.compile(
    r"(?:\A|[.!?:\n]|\b(?:so|thus|therefore|hence|only|choosing|that means)),?[\s*]*\Z", re.IGNORECASE
)
"""What may stand before an option of which a reply says that it is right: no doubt, and no noun."""
_ANOTHER = re.compile(r"\b(?:go with|choose|chose|pick)\s+\(?([A-J])\b|(?<![A-Za-z])([A-J])\)?,? (?:also|too|works)\b")
_WEIGHED = re.compile(
    r"[.!?;:]\s+\S|\b(?:not?|false|true|incorrect|correct|wrong|right|impossible|excluded|rule[sd]?|let|check|must|because)\b",
    re.IGNORECASE,
)
"""In what follows a label: that it is looked at, not chosen."""
_BEGINS = re.compile(r"(?:\([A-J]\)[.:]?|[A-J][.)])[\s*]+\S")


def labelled(text: str) -> str | None:
    """The letter that `text` is (`B`, `(b)`) or begins with as a label (`B. 12`, `(B) 12`), in upper case; None where
    it is none, or names another option as well (`B. 12 or C`, `(B) 12, (C) 13`)."""
    alone = _alone(text)
    if alone is not None or (label := _LABEL.fullmatch(text)) is None:
        return alone
    first, option = (label[1] or label[2]).upper(), label[3]
    named = {"".join(found).upper() for found in _NAMED.findall(option)}
    return first if named <= {first} else None


def said_letter(text: str) -> str | None:
    """The letter that a reply chooses, in upper case: the reply is nothing else, or an option with its text
    (`B. Paris`), or says that it is the answer or correct. None where it chooses none or several."""
    alone = _alone(text)
    if alone is not None:
        return alone
    right = list(_IS_RIGHT.finditer(text))
    rest = _IS_RIGHT.sub(r"\1\2 ", text)  # "B is the correct answer. A is not" does not say A
    last = next(reversed(list(_SAID.finditer(rest))), None)
    if last is not None:
        return (last[1] or last[2]).upper() if _OR_ANOTHER.match(rest, last.end()) is None else None
    if right:
        return _claimed(text, right)
    label = _LABEL.fullmatch(text.strip("* ")) if _BEGINS.match(text) and "\n" not in text else None
    return labelled(text.strip("* ")) if label is not None and not _WEIGHED.search(label[3]) else None


def _claimed(text: str, right: Sequence[re.Match[str]]) -> str | None:
    """The letter of which a reply says itself that it is right, of no other one, and then chooses no other one."""
    letters = {found[1] or found[2] for found in right}
    others = {one[1] or one[2] for one in _ANOTHER.finditer(text, right[0].end())}
    claims = any(_CLAIMED.search(text, max(found.start() - 40, 0), found.start()) for found in right)
    return letters.pop() if len(letters) == 1 and others <= letters and claims else None


def _alone(text: str) -> str | None:
    found = _ALONE.fullmatch(text)
    return found[1].upper() if found is not None else None
