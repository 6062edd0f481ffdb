r"""Numbers with plain words around them: `18 eggs`, `\text{$1,800 per month}`, `**64**`, `Answer: 10`.

Math-Verify takes such words for products of letters. Pure functions. What may say another number (`5 dozen`, `not 5`,
`20 percent`, `5 or 6`) or none (`5 xy`) is no quantity here.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from retcon.tasks.graders.text import rational, unset

CHARS = 200  # a longer text is no quantity
_LETTERS = "[A-Za-zÀ-ÖØ-öø-ɏ]"
_NUMBER = re.compile(
    r"(?<![\w.,])[-+]?(?:\\[dt]?frac\s*\{?)?\.?\d(?:.*\d)?\}?(?![\w!^}]|\s*\\?%)", re.ASCII | re.DOTALL
)
_WORD = re.compile(_LETTERS + "+")
_AROUND = re.compile(rf"(?:[\s.,:;()\"'`“”]|{_LETTERS}+!?|(?<={_LETTERS})[-/’](?={_LETTERS}))*+")
_PER = re.compile(rf"\s?/\s?(?={_LETTERS})")
_CURRENCY = re.compile(rf"({_LETTERS})?\\?[$€£¥₹]")
_ENDING = re.compile(rf"(?<={_LETTERS})(?:\(e?s\)|['’]s\b)")  # egg(s), day's
_POWER = re.compile(rf"(?<={_LETTERS})\s?\^\{{?([23])\}}?")  # cm^2
_POWERS = {"2": " square", "3": " cubic"}
_SHORT = re.compile("an|by|for|in|of|on|to|us|we|[kcm]m|[km]g|ml|ft|lbs?|oz|hrs?|[mk]ph|yrs")
_SPOKEN = re.compile("about|answer|approximately|are|final|is|it|of|so|the|there|total")
_OTHERWISE = re.compile(  # another number, no number, or mathematics
    r"""
    no | not | never | neither | nor | none | without | than | minus | negative | plus | times | divided | multiplied
    | or | between | (?:dozen|hundred|thousand|million|billion|trillion)s? | mil | mille | millones | millionen
    | milliards? | tausend | one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
    | (?:thir|four|fif|six|seven|eigh|nine)teen | (?:twen|thir|for|fif|six|seven|eigh|nine)ty | half | halves | twice
    | double | triple | (?:third|quarter|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)th)s? | percents?
    | percentage | pct | squared | cubed | power | root | sqrt | sin | cos | tan | cot | sec | csc | log | exp
    | mod | modulo | max
    | min | gcd | lcm | det | inf(?:ty|inite|inity)? | factorial | base | abcd? | abs | arg | floor | ceil(?:ing)?
    | sign | arc\w+ | a?(?:sin|cos|tan)h? | sine | cosine | tangent | alpha | beta | gamma | delta | theta | lambda
    | sigma | tau | phi | omega
    | except | all | every | but | least | most | under | over | above | below | before | after | zero | loss
    | decreased? | multiples? | primes? | divisible | undefined | odd | even | lakhs? | crores? | gross | score | pairs?
    | couple | fold | twelfths? | basis | wrong | false | options? | figures? | bce?
    | january | february | march | april | may | june | july | august | september | october | november | december
    | jan | feb | mar | apr | jun | jul | aug | sept? | oct | nov | dec
    """,
    re.VERBOSE,
)
_VOWELS = frozenset("aeiou")
_PLURAL = re.compile("(?:e?s|e)$")
_COUNT = re.compile(r"((?<![\w.])\d[\d,]*+(?:\.\d+)?(?:/\d+)?)", re.ASCII)
_REMAINDERS = ("r", "remainder")
_BETWEEN = ("and", "by", "x")


def same_quantity(answer: str, said: str) -> bool:
    """Whether both are one number, with words around it or not, and the same one. Where both have words, these must be
    the same: `18 eggs` is `18`, but not `18 pears`."""
    ours, theirs = _quantity(answer), _quantity(said)
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return False
    return not ours[1] or not theirs[1] or ours[1] == theirs[1]


def same_measures(answer: str, said: str) -> bool | None:
    """Whether `said` has the same numbers as an answer that has several, each with a unit (`3 hours 20 minutes`); None
    where `answer` is none. Which number has which unit counts where both have the same units."""
    ours = _measures(answer)
    if ours is None or not all(_plain(word) for _, unit in ours for word in unit.split()):
        return None
    theirs = _measures(said) or []
    if {unit for _, unit in ours} == {unit for _, unit in theirs}:
        return sorted(ours) == sorted(theirs)
    by_unit = {unit: number for number, unit in theirs}
    shared = all(by_unit.get(unit, number) == number for number, unit in ours)
    return shared and [number for number, _ in ours] == [number for number, _ in theirs]


def _quantity(text: str) -> tuple[Fraction, frozenset[str]] | None:
    """The number that a text is, and the words around it, without their endings."""
    number = rational(text)
    if number is not None:
        return number, frozenset()
    text = _bare(text)
    found = _NUMBER.search(text) if len(text) <= CHARS and ".." not in text else None
    number = rational(found[0]) if found is not None else None
    if found is None or number is None:
        return None
    words = _words(text[: found.start()] + " " + _PER.sub(" per ", text[found.end() :], count=1))
    return (number, words) if words is not None else None


def _measures(text: str) -> list[tuple[Fraction, str]] | None:
    """The numbers of a text that is two or more of them, each with its unit, as they stand."""
    text = _bare(text)
    if len(text) > CHARS:
        return None
    before, *parts = _COUNT.split(text)
    found = []
    for number, between in zip(parts[::2], parts[1::2], strict=True):
        value = rational(number.rstrip(","))
        if value is None or not _AROUND.fullmatch(between):
            return None
        found.append((value, " ".join(_stem(word) for word in _WORD.findall(between) if word not in _BETWEEN)))
    if len(found) < 2 or _words(before) != frozenset():
        return None
    if len(found) == 2 and found[0][1] in _REMAINDERS and not found[1][1]:
        return [(found[0][0], "quotient"), (found[1][0], "remainder")]
    return found if all(unit for _, unit in found) else None


def _bare(text: str) -> str:
    """Without markup, currency and what ends a word."""
    text = _CURRENCY.sub(lambda found: f"{found[1]} " if found[1] else "", unset(text))
    text = _ENDING.sub("", text.replace("{,}", ",").replace(r"\!", "").strip("*_`# \n"))
    return _POWER.sub(lambda found: _POWERS[found[1]], text).strip()


def _words(text: str) -> frozenset[str] | None:
    """The words of a text, without their endings and those that only announce an answer; None where there is something
    else, or a word that may change a number."""
    words = [word.casefold() for word in _WORD.findall(text)]
    if not _AROUND.fullmatch(text) or not all(_plain(word) for word in words) or ("per", "cent") in pairwise(words):
        return None
    return frozenset(_stem(word) for word in words if not _SPOKEN.fullmatch(word))


def _plain(word: str) -> bool:
    """Whether it is no product of letters (`xy`), and does not change a number (`dozen`)."""
    if _SHORT.fullmatch(word) or _SPOKEN.fullmatch(word):
        return True
    return len(word) > 2 and not _OTHERWISE.fullmatch(word) and (not word.isascii() or not _VOWELS.isdisjoint(word))


def _stem(word: str) -> str:
    return _PLURAL.sub("", word.casefold())
