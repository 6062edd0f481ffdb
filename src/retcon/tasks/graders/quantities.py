r"""Numbers with units and words: `18 eggs`, `\text{$1,800 per month}`, `12\text{ cm}^2`.

Pure functions of the output of `to_latex`, equal for both sides. Words in `\text{…}` are words; bare ones might be
products of letters (`xy`). A unit is the last noun of the words after a number (`square feet of carpet`: foot, square),
and its denominator (`per hour`). `1.5 million` is 1,500,000; other texts that may name another number (`5 dozen`,
`not 5`, `5 or 6`) are not quantities.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from retcon.tasks.graders.text import parse_rational, strip_markup

SPOKEN = re.compile("about|answer|approximately|are|final|is|it|of|so|the|there|total|exactly|therefore|thus")
"""Words that only announce an answer."""
SHORT = re.compile(
    "an|by|for|in|of|on|to|us|we|[kcmdn]m|[km]g|ml|ft|lbs?|oz|hrs?|[mk]ph|min|sec|yrs?|yd|sq|cu|[ap]m|mi"
    "|kwh|[kmg]?hz|[km]pa|kj|[kmgt]b|rpm|bpm|fps"
)
"""Short words, or words without a vowel, that are not products of letters."""
ENDS = re.compile(
    r"""
    in | of | for | at | on | to | by | from | with | before | after | altogether | overall | remaining | left | away
    | more | long | wide | tall | high | old | that | which | who | is | are | was | were | did | do | does | has | have
    | had | will | would | can | could | must | so | because | since | as | when | where | if | while | than | and | or
    | total | now | \w{2,}ing | however | during | until | between | among | out
    """,
    re.VERBOSE,
)
"""Words that end a unit: `18 miles before`."""
EACH = re.compile("an?|per|each|every")
FRONT = re.compile(
    r"""
    no | not | never | neither | nor | none | without | than | minus | negative | between | except | every | but
    | least | most | under | over | above | below | before | after | loss | decreased? | multiples? | primes? | odd
    | even | wrong | false | incorrect | options? | figures? | min | sec | max | half | nearly | almost | fewer | less
    """,
    re.VERBOSE,
)
"""Words before a number that negate, change or qualify it."""
DENIALS = re.compile("not|never|no|neither|nor|isn|doesn|don|cannot|won|wouldn|least|most|than|half|twice|wrong")
"""Words before a number, without IS between, that change it."""
IS = re.compile(r".*(?:\b(?:is|are|was|were|equals?)\b|=)", re.DOTALL)
"""Text up to the last of these: `the least value is`."""
DOUBTS = re.compile(
    r"^\W*(?:so\s+)?(?:no|none|neither|nobody|nothing)\b(?!\.)"
    r"|(?:\b(?:not|never|cannot)|n['’]t)\s+(?:\w+ly\s+)?(?:think|believe|know|say|mean|sure|certain|clear|true)\b"
)
"""Text that denies or doubts the number after it."""
NUMBERS = re.compile(
    r"""
    (?:dozen|hundred|thousand|million|billion|trillion)s? | mil | mille | millones | millionen | milliards? | tausend
    | one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
    | (?:thir|four|fif|six|seven|eigh|nine)teen | (?:twen|thir|for|fif|six|seven|eigh|nine)ty | half | halves
    | (?:third|quarter|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)th)s? | zero | lakhs? | crores? | twelfths?
    | gross | score | couple
    """,
    re.VERBOSE,
)
"""Words beside a number that change it: `5 dozen`. Not within a noun: `3 two-digit primes`."""
NOUNS = re.compile("power|root|base|double|triple|wrong|false|incorrect")
"""Words that change a number, except before a noun: `8 power strips`."""
OTHERWISE = re.compile(
    rf"""
    {NUMBERS.pattern} | {NOUNS.pattern} | not | neither | nor | none | divided | multiplied | or | k | twice | percents?
    | percentage | pct | squared | cubed | sqrt | sin | cos | tan | cot | csc | log | exp
    | mod | modulo | gcd | lcm | det | inf(?:ty|inite|inity)? | factorial | abcd? | abs | arg | floor
    | ceil(?:ing)? | sign | arc\w+ | a?(?:sin|cos|tan)h? | sine | cosine | tangent | alpha | beta | gamma | delta
    | theta | lambda | sigma | tau | phi | omega | than | plus | minus | divisible | undefined
    | fold | basis | bce? | th | nd | rd | st
    | january | february | march | april | may | june | july | august | september | october | november | december
    | jan | feb | mar | apr | jun | jul | aug | sept? | oct | nov | dec | dots | clock
    """,
    re.VERBOSE,
)
"""Words beside a number that change or negate it, or are mathematics."""
LETTERS = "[ghlmsL]"
"""Units of one letter, which may be variables too."""
RATES = {"mph": ("mile", "hour"), "kph": ("kilometer", "hour"), "kmph": ("kilometer", "hour")}
_UNIT_LETTERS = re.compile(r"[^\W\d_]+")
_VOWELS = frozenset("aeiou")
_PLURAL = re.compile("(?:e?s|e)$")
_SPELLINGS = """
meter m metre|centimeter cm centimetre|millimeter mm millimetre|kilometer km kilometre|inch in|foot ft feet|yard yd
mile mi|gram g gm|kilogram kg kilo|milligram mg|pound lb|ounce oz|liter l litre|milliliter ml millilitre|second s sec
minute min|hour h hr|year yr|degree deg|coulomb c|dollar usd buck|euro eur|person people|man men|woman women
child children
"""
_SAME = {word: line.split()[0] for line in _SPELLINGS.strip().replace("\n", "|").split("|") for word in line.split()}


def singular(word: str) -> str:
    """Return the singular, in one spelling for each unit: `inch` for `inches` and `in`."""
    word = word.casefold()
    for spelling in (word, word.removesuffix("s"), word.removesuffix("es")):
        if spelling in _SAME:
            return _SAME[spelling]
    return _PLURAL.sub("", word) or word


def is_neutral(word: str, *, marked: bool) -> bool:
    """Return whether a word beside a number does not change it. marked: it is in `\\text{…}`, so that it is not a
    product of letters (`xy`)."""
    if SHORT.fullmatch(word) or SPOKEN.fullmatch(word):
        return True
    if OTHERWISE.fullmatch(word):
        return False
    return marked or (len(word) > 2 and (not word.isascii() or not _VOWELS.isdisjoint(word)))


def changes_number(words: str) -> bool:
    """Return whether words before a number change or deny it: `at least`, `not`, `March`."""
    clause = words.rpartition(",")[2].casefold()
    front = _UNIT_LETTERS.findall(clause)
    if front and (FRONT.fullmatch(front[-1]) or OTHERWISE.fullmatch(front[-1])):
        return True
    nearer = _UNIT_LETTERS.findall(IS.sub("", clause))
    return DOUBTS.search(clause) is not None or any(DENIALS.fullmatch(word) for word in nearer[-5:])


CHARS = 200  # a longer text is not a quantity; units and signs of per cent are searched this far from the end
_LETTERS = "[A-Za-zÀ-ÖØ-öø-ɏ]"
_MARK = "¦"  # before each word from \text{…}
_NUMBER = re.compile(
    r"(?<![\w.,\\])[-+]?(?:\\[dt]?frac\s*\{?)?\.?\d(?:.*\d)?\}?(?![\w!^}]|\s*\\?%)", re.ASCII | re.DOTALL
)
_WORD = re.compile(f"{_MARK}?{_LETTERS}+")
_AROUND = re.compile(
    rf"(?:[\s.,:;()\"'`“”]|{_MARK}?{_LETTERS}+!?|(?<={_LETTERS})[-/’](?={_MARK}?{_LETTERS})|{_MARK})*+"
)
_LETTERED = re.compile(rf"(.*\d)\s*({LETTERS})(?:\s?/\s?({LETTERS})(?:\^\{{?([23])\}}?)?)?", re.ASCII | re.DOTALL)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
RAISABLE = (
    r"(?i:[kcmd]m|in(?:ch(?:es)?)?|ft|foot|feet|yds?|yards?|mi(?:les?)?|(?:centi|deci|kilo|milli)?met(?:er|re)s?|units?"
    r"|sec(?:onds?)?|min(?:utes?)?|h(?:ou)?rs?)"
)
"""Units that may have a power: other letters are variables."""
_POWER = re.compile(  # not 3xy^2
    rf"(\\text\{{[^{{}}]*\}}|(?<!{_LETTERS})(?<!\\){RAISABLE})\s?\^\s?\{{?([23])\}}?(?!\d)"
)
_DEGREES = re.compile(
    r"\s?\^\s?\{?\\circ(?![A-Za-z])\s?\}?\s?(?:\\text\{\s*)?([CF])?(?![A-Za-z])\}?|\\degree(?![A-Za-z])"
)
_SCALES = {"C": "Celsius", "F": "Fahrenheit"}
_POWERS = {"2": "square", "3": "cubic"}
_RAISED = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_UNITS = re.compile(  # at the end of a formula
    rf"(?:(?:\s*\\text\{{(?!clock|dots)[^{{}}]*\}}|(?<=[\s}}\d])\s*(?<![\\A-Za-z])(?:[kcm]m|{_LETTERS}{{3,}}))"
    r"(?:\s?/\s?)?)+[\s.]*$"
)
_GLUED = re.compile(r"(?<=\d)(?=(?:[kcm]m|kg|mL|ft|lbs?|oz|hrs|min|sec|[mk]ph)(?![A-Za-z]))")  # 12kg; 2mg may be m·g
_PER_POWER = re.compile(rf"(/\s?(?:{LETTERS}|{RAISABLE}))\s?\^\s?\{{?([23])\}}?(?!\d)")  # kg/m^3
_PER_LETTER = re.compile(rf"(?<=[A-Za-z]{{2}})\s?/\s?({LETTERS})(?![A-Za-z])")  # km/h, but not m/s
_PER = re.compile(rf"(?<!\s)\s*/\s*(?={_MARK}?{_LETTERS})(?!{_MARK}?false)")
_COMPOUND = re.compile(  # two-digit
    rf"(?<!{_LETTERS})({NUMBERS.pattern})-{_MARK}?(?!(?:{NUMBERS.pattern})(?!{_LETTERS}))(?={_LETTERS})",
    re.IGNORECASE | re.VERBOSE,
)
_SCALED = re.compile(rf"\s*{_MARK}?(thousand|million|billion|trillion)(?![-\w'’])", re.IGNORECASE)
_SCALE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MERIDIEM = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
_MONEY = re.compile(rf"(?<!{_LETTERS})(?:USD|US|CAD|A)?\s?\\?([$€£¥₹])")
_MONIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_OFTEN = re.compile("an?|per|each|every|in|on|during|over|for|total|altogether")
_ANY = frozenset({"unit"})  # fits every unit
_CURRENCIES = frozenset(_MONIES.values()) - {"pound"}
_COUNT = re.compile(r"((?<![\w.])\d[\d,]*+(?:\.\d+)?(?:/\d+)?)", re.ASCII)
_REMAINDERS = ("r", "remainder")
_BETWEEN = ("and", "by", "x")


class Unit(NamedTuple):
    """Unit of a number. noun: singular, or ''; power: of lengths, 1 to 3; per: '' or a noun; money: its currency, or
    ''; front: the words before it."""

    noun: str = ""
    power: int = 1
    per: str = ""
    money: str = ""
    front: frozenset[str] = frozenset()

    def fits(self, other: Unit) -> bool:
        """Return whether the units that both have are equal."""
        if self.front and other.front and self.front != other.front:
            return False
        if self.money and other.money and self.money != other.money:
            return False
        if bool(self.money) != bool(other.money) and (other.noun if self.money else self.noun):
            return self.noun == other.noun
        ours, theirs = (one[:3] for one in (self, other))
        bare = ("", 1, "")
        return bare in (ours, theirs) or ours == theirs


class Quantity(NamedTuple):
    value: Fraction
    unit: Unit


def same_quantity(answer: str, other: str) -> bool:
    """Return whether both are the same number, with or without words. Units that both have must be equal: `18 eggs` is
    `18`, and `18 large eggs`, but not `18 pears`."""
    ours, theirs = parse_quantity(answer), parse_quantity(other)
    return ours is not None and theirs is not None and ours.value == theirs.value and ours.unit.fits(theirs.unit)


def parse_quantity(text: str) -> Quantity | None:
    """Parse a number with its unit; None for other or ambiguous texts."""
    number = parse_rational(text)
    if number is not None:
        return Quantity(number, Unit())
    text, money = _bare(_GLUED.sub(" ", _PER_POWER.sub(_per_power, text)))
    text = _PER_LETTER.sub(rf" per {_MARK}\1", text)
    if len(text) > CHARS:
        return None
    found = _NUMBER.search(text) if ".." not in text else None
    number = parse_rational(found[0]) if found is not None else None
    if found is None or number is None:
        return None
    behind = text[found.end() :]
    if (scaled := _SCALED.match(behind)) is not None:
        number, behind = number * _SCALE[scaled[1].lower()], behind[scaled.end() :]
    unit = _unit(text[: found.start()], behind, money)
    return None if unit is None else Quantity(number, unit)


def split_unit(text: str) -> tuple[str, Unit]:
    r"""Split a formula from its unit at the end: `2\sqrt{3}\text{ cm}`. It stays whole where the words may mean
    something else, or are all of it."""
    text = _POWER.sub(_in_words, text.replace(r"\$", "$"))
    money = _money(text)
    text = _MONEY.sub("", text) if money else text
    found = _UNITS.search(text, max(0, len(text) - CHARS))
    if found is None:
        return text.strip(), Unit(money=money)
    core, words = text[: found.start()].strip(), _marked(found[0])
    unit = _unit("", words, money) if core and core[-1] not in "+-*/=^_,<>(" else None
    return (text.strip(), Unit(money=money)) if unit is None else (core, unit)


def same_measures(answer: str, other: str) -> bool | None:
    """Compare several numbers with units (`3 hours 20 minutes`). None for another kind of `answer`. The pairing of
    numbers and units counts where both have the same units. A bare letter (`540 m`) is a unit where the other side has
    it."""
    if _lettered(answer, other) or _lettered(other, answer):
        return True
    ours = parse_measures(answer)
    if ours is None or not all(_plain(word) for _, unit in ours for word in unit.split()):
        return None
    theirs = parse_measures(other) or []
    if {unit for _, unit in ours} == {unit for _, unit in theirs}:
        return sorted(ours) == sorted(theirs)
    return len(ours) == len(theirs) and all(  # h for hours
        number == other and unit[0] == their_unit[0]
        for (number, unit), (other, their_unit) in zip(ours, theirs, strict=True)
    )


def _lettered(text: str, other: str) -> bool:
    found, theirs = _LETTERED.fullmatch(text), parse_quantity(other)
    if found is None or theirs is None:
        return False
    per = singular(found[3]) + (found[4] or "") if found[3] else ""
    return theirs.value == parse_rational(found[1]) and theirs.unit[:3] == (singular(found[2]), 1, per)


def parse_measures(text: str) -> list[tuple[Fraction, str]] | None:
    """Parse two or more numbers with their units, in order; None for other texts."""
    text, _ = _bare(text)
    if len(text) > CHARS:
        return None
    before, *parts = _COUNT.split(text)
    found = list[tuple[Fraction, str]]()
    for number, between in zip(parts[::2], parts[1::2], strict=True):
        value = parse_rational(number.rstrip(","))
        if value is None or not _AROUND.fullmatch(between):
            return None
        words = [word.strip(_MARK).casefold() for word in _WORD.findall(between)]
        inches = words[-1:] == ["in"] and len(found) + 1 == len(parts) // 2
        others = [word for word in words[: len(words) - inches] if word not in _BETWEEN]
        if any(ENDS.fullmatch(word) or EACH.fullmatch(word) for word in others):
            return None
        found.append((value, " ".join(singular(word) for word in words if word not in _BETWEEN)))
    if len(found) < 2 or _unit(before, "", "") != Unit():
        return None
    if len(found) == 2 and found[0][1] in _REMAINDERS and not found[1][1]:
        return [(found[0][0], "quotient"), (found[1][0], "remainder")]
    return found if all(unit for _, unit in found) else None


def shorten_meridiem(text: str) -> str:
    """Write `am` and `pm` for `a.m.` and `p.m.`."""
    return _MERIDIEM.sub(r"\1m", text)


def _bare(text: str) -> tuple[str, str]:
    """Remove markup, put _MARK before each word of `\\text{…}`, and return the text and its currency."""
    text = text.replace("¢", " cents ")
    text = _marked(_POWER.sub(_in_words, _DEGREES.sub(_in_degrees, text)))
    money = _money(text)
    text = strip_markup(_MONEY.sub(" ", text))
    return text.replace("{,}", ",").replace(r"\!", "").strip("*_`# \n").strip(), money


def _money(text: str) -> str:
    found = _MONEY.search(text)
    return _MONIES[found[1]] if found is not None else ""


def _per_power(found: re.Match[str]) -> str:
    return f"{found[1]} {_POWERS[found[2]]}"


def _in_degrees(found: re.Match[str]) -> str:
    return rf"\text{{ degrees {_SCALES.get(found[1], '')}}}"


def _in_words(found: re.Match[str]) -> str:
    word = found[1].removeprefix(r"\text{").removesuffix("}")
    return rf"\text{{{word} {_POWERS[found[2]]}}}"


def _marked(text: str) -> str:
    text = shorten_meridiem(text)
    return _TEXT.sub(lambda found: _WORD.sub(lambda word: f"{_MARK}{word[0]}", f" {found[1]} "), text)


def _unit(before: str, behind: str, money: str) -> Unit | None:
    """Parse a unit; None for anything but words, and for a word that may change the number."""
    behind = _COMPOUND.sub(r"\1", _PER.sub(" per ", behind, count=1))
    if not _AROUND.fullmatch(before) or not _AROUND.fullmatch(behind):
        return None
    front, words = ([word.casefold() for word in _WORD.findall(part)] for part in (before, behind))
    if any(FRONT.fullmatch(word.strip(_MARK)) for word in front) or _times(words):
        return None
    follow = [*words[1:], ""][: len(words)]
    if not all(_plain(word) for word in front):
        return None
    if not all(_reads(word, next_) for word, next_ in zip(words, follow, strict=True)):
        return None
    unit = _of([word.strip(_MARK) for word in words])
    leading = frozenset(singular(word.strip(_MARK)) for word in front if not SPOKEN.fullmatch(word.strip(_MARK)))
    if unit.noun in _CURRENCIES:
        unit, money = unit._replace(noun=""), money or unit.noun
    return unit._replace(money=money, front=leading)


def _reads(word: str, follows: str) -> bool:
    """Return whether a word after a number does not change it."""
    if word == "a":
        return len(follows) > 2
    noun_follows = follows != "" and not ENDS.fullmatch(follows.strip(_MARK))
    return _plain(word) or (noun_follows and NOUNS.fullmatch(word.strip(_MARK)) is not None and _plain(follows))


def _times(words: list[str]) -> bool:
    """Return whether a number is a percentage or a factor: `18 per cent`, `18 times as many`."""
    plain = [word.strip(_MARK) for word in words]
    return any(
        pair == ("per", "cent") or (pair[0] == "times" and not _OFTEN.fullmatch(pair[1])) for pair in pairwise(plain)
    )


def _of(words: list[str]) -> Unit:
    power, per, kept = 1, "", list[str]()
    for n, word in enumerate(words):
        if EACH.fullmatch(word):
            per = _counted_by(words[n + 1 :])
            break
        if ENDS.fullmatch(word) and not (word == "in" and words[n + 1 : n + 2] in ([], ["per"])):
            break
        if word in _RAISED:
            power = _RAISED[word]
        elif word in RATES:
            kept, per = [RATES[word][0]], RATES[word][1]
        elif not SPOKEN.fullmatch(word):
            kept.append(word)
    counted = singular(kept[-1]) if kept else ""
    return Unit("", 1, per) if counted in _ANY else Unit(counted, power, per)


def _counted_by(words: list[str]) -> str:
    """Return the noun after `per`, with its power: `second2`."""
    power = next((str(_RAISED[word]) for word in words if word in _RAISED), "")
    counted = next((singular(word) for word in words if word not in _RAISED), "".join(words))
    return counted and f"{counted}{power}"


def _plain(word: str) -> bool:
    return is_neutral(word.strip(_MARK), marked=word.startswith(_MARK))
