r"""The letter of an option, in a marked answer (`B. Vitamin C`) and in a reply that marks none (`B is correct.`).

Pure functions of text without markup. A reply that names several letters as its choice has none.
"""

from __future__ import annotations

import re

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
_NOT_CLAIMED = re.compile(
    r"(?:\b(?:n?or|and|if|whether|not|unless|until|suppose|assum(?:e|ing)|n?either|says?|claims?)|[/&]|\b[A-J],)[\s*]*\Z",
    re.IGNORECASE,
)
_BEGINS = re.compile(r"(?:\([A-J]\)[.:]?|[A-J][.)])[\s*]+\S")
_RETRACTED = re.compile(rf"\b(?:is|be|choose|pick|actually|rather)\s+{_OPTION}\(?{_CAPITAL}(?=[\s*)]*(?:[.!,;]|\Z))")


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
    """The letter that a reply chooses, in upper case: the reply is nothing else, says that it is the answer or
    correct, or begins with it as a label (`B. Paris`), as no other line does. None where it chooses none or several."""
    alone = _alone(text)
    if alone is not None:
        return alone
    right = {
        found[1] or found[2]
        for found in _IS_RIGHT.finditer(text)
        if not _NOT_CLAIMED.search(text[max(found.start() - 30, 0) : found.start()])
    }
    text = _IS_RIGHT.sub("", text) if right else text  # "B is the correct answer. A is not" does not say A
    last = next(reversed(list(_SAID.finditer(text))), None)
    if last is not None:
        return (last[1] or last[2]).upper() if _OR_ANOTHER.match(text, last.end()) is None else None
    if right:
        return right.pop() if len(right) == 1 else None
    first, *others = text.split("\n")
    if not _BEGINS.match(first) or any(_BEGINS.match(line.strip("* ")) or _RETRACTED.search(line) for line in others):
        return None
    return labelled(first.strip("* "))


def _alone(text: str) -> str | None:
    found = _ALONE.fullmatch(text)
    return found[1].upper() if found is not None else None
