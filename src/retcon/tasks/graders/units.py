"""Words beside numbers: which are units, which end one, and which make another number of it."""

from __future__ import annotations

import re

SPOKEN = re.compile("about|answer|approximately|are|final|is|it|of|so|the|there|total|exactly|therefore|thus")
"""What only announces an answer."""
SHORT = re.compile(
    "an|by|for|in|of|on|to|us|we|[kcmdn]m|[km]g|ml|ft|lbs?|oz|hrs?|[mk]ph|min|sec|yrs?|yd|sq|cu|[ap]m|mi"
    "|kwh|[kmg]?hz|[km]pa|kj|[kmgt]b|rpm|bpm|fps"
)
"""Words of few letters, or without a vowel, that are no products of letters."""
ENDS = re.compile(
    r"""
    in | of | for | at | on | to | by | from | with | before | after | altogether | overall | remaining | left | away
    | more | long | wide | tall | high | old | that | which | who | is | are | was | were | did | do | does | has | have
    | had | will | would | can | could | must | so | because | since | as | when | where | if | while | than | and | or
    | total | now | \w{2,}ing | however | during | until | between | among | out
    """,
    re.VERBOSE,
)
"""Words with which a unit is over: `18 miles before`."""
EACH = re.compile("an?|per|each|every")
FRONT = re.compile(
    r"""
    no | not | never | neither | nor | none | without | than | minus | negative | between | except | every | but
    | least | most | under | over | above | below | before | after | loss | decreased? | multiples? | primes? | odd
    | even | wrong | false | incorrect | options? | figures? | min | sec | max | half | nearly | almost | fewer | less
    """,
    re.VERBOSE,
)
"""Before a number: none, another one, or one of a kind."""
DENIALS = re.compile("not|never|no|neither|nor|isn|doesn|don|cannot|won|wouldn|least|most|than|half|twice|wrong")
"""Some words before a number, with no IS between: that it is another one."""
IS = re.compile(r".*(?:\b(?:is|are|was|were|equals?)\b|=)", re.DOTALL)
"""All up to the last of these: `the least value is`."""
DOUBTS = re.compile(
    r"^\W*(?:so\s+)?(?:no|none|neither|nobody|nothing)\b(?!\.)"
    r"|(?:\b(?:not|never|cannot)|n['’]t)\s+(?:\w+ly\s+)?(?:think|believe|know|say|mean|sure|certain|clear|true)\b"
)
"""That what follows is not said to be so."""
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
"""Beside a number they make another one: `5 dozen`. Not within a noun: `3 two-digit primes`."""
NOUNS = re.compile("power|root|base|double|triple|wrong|false|incorrect")
"""As NUMBERS, but not before a noun: `8 power strips`."""
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
"""Beside a number: another one, none, or mathematics."""
LETTERS = "[ghlmsL]"
"""Units of one letter, which may be variables as well."""
PACKED = re.compile(
    r"""
    (?<![\w.,])(\d{1,3})\s([1-9]\d\d)
    (?:
        -([a-z]{3,})(?=[\s¦]+[a-z]{3})
        |(?:\\text\{|[\s¦-])*+
        ([mcdk]?[lgLW]|oz|lbs?
            |(?:(?:milli|centi|kilo)?(?:lit(?:er|re)|gram)|ounce|pound|gallon|watt|dollar|euro|cent)s?)
        (?=[\s¦}-](?:\\text\{|[\s¦}])*+
            (?:bottle|can|bag|box|cup|glass|jar|tin|pack(?:et|age)?|carton|container|tube|bulb|bar|block|bucket|barrel
            |jug|sack|pot|bowl|tank|serving|portion|bill|note|coin)(?:e?s)?(?![A-Za-z]))
    )
    """,
    re.VERBOSE,
)
"""Things of one size, how many there are and how large each is: `3 250 ml bottles`, no 3,250."""
RATES = {"mph": ("mile", "hour"), "kph": ("kilometer", "hour"), "kmph": ("kilometer", "hour")}
_LETTERS = re.compile(r"[^\W\d_]+")
_VOWELS = frozenset("aeiou")
_PLURAL = re.compile("(?:e?s|e)$")
_SPELLINGS = """
meter m metre|centimeter cm centimetre|millimeter mm millimetre|kilometer km kilometre|inch in|foot ft feet|yard yd
mile mi|gram g gm|kilogram kg kilo|milligram mg|pound lb|ounce oz|liter l litre|milliliter ml millilitre|second s sec
minute min|hour h hr|year yr|degree deg|coulomb c|dollar usd buck|euro eur|person people|man men|woman women
child children
"""
_SAME = {word: line.split()[0] for line in _SPELLINGS.strip().replace("\n", "|").split("|") for word in line.split()}


def noun(word: str) -> str:
    """Its singular, one spelling for all units of that name: `inch` for `inches` and `in`."""
    word = word.casefold()
    for spelling in (word, word.removesuffix("s"), word.removesuffix("es")):
        if spelling in _SAME:
            return _SAME[spelling]
    return _PLURAL.sub("", word) or word


def plain(word: str, *, marked: bool) -> bool:
    """Whether a word beside a number leaves it as it is. marked: it stands in `\\text{…}`, so that it is no product of
    letters (`xy`)."""
    if SHORT.fullmatch(word) or SPOKEN.fullmatch(word):
        return True
    if OTHERWISE.fullmatch(word):
        return False
    return marked or (len(word) > 2 and (not word.isascii() or not _VOWELS.isdisjoint(word)))


def changes_a_number(words: str) -> bool:
    """Whether words before a number say that it is another one, or none: `at least`, `not`, `March`."""
    clause = words.rpartition(",")[2].casefold()
    front = _LETTERS.findall(clause)
    if front and (FRONT.fullmatch(front[-1]) or OTHERWISE.fullmatch(front[-1])):
        return True
    nearer = _LETTERS.findall(IS.sub("", clause))
    return DOUBTS.search(clause) is not None or any(DENIALS.fullmatch(word) for word in nearer[-5:])
