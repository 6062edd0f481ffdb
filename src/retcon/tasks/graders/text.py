r"""Grading by the text of the answer alone: what a reply's answer is, and whether it is the same text or letter.

Pure functions, a fraction of a millisecond each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain

# The letter of an option, in a marked answer (`B. Vitamin C`) and in a reply that marks none (`B is correct.`).
#
# Pure functions of text without markup. A reply that names several letters as its choice has none.

_OPTION = r"(?:(?i:option|choice|answer|letter)\s+)?"
_ANNOUNCED = r"(?:(?i:(?:final\s+|correct\s+)?answer)\s?:\s*)?"  # as in `#### Answer: B`
_ALONE = re.compile(_ANNOUNCED + _OPTION + r"[(\[]?([A-Za-z])[)\]]?[.:]?")
_LABEL = re.compile(_ANNOUNCED + _OPTION + r"(?:\(([A-Za-z])\)[.:]?\s*|([A-Za-z])(?:[.:]|\s?\))\s+)(\S.*)", re.DOTALL)
_CAPITAL = r"(?:[B-HJ](?![A-Za-z'])|[AI](?=[\s*$)]*(?:[.,;:!?]|or\b|and\b|\Z)))"  # but not the words A and I
_NAMED = re.compile(
    r"\A([A-J])[.:]?\Z|"
    r"(?<![A-Za-z0-9])\(([A-Za-z])\)|(?<![A-Za-z\\])([A-J])(?=[.:)]\s+\S|\s+(?:is|was|seems|looks|fits)\b)"
    r"|(?:\b(?:or|and|is|but|no|wait|actually|rather|maybe|perhaps|also|both|either|[Oo]ption|[Cc]hoice|[Aa]nswer)\b"
    rf"|[,;/&>→])[\s*$]*({_CAPITAL})"
)
_LETTER = _OPTION + (
    r"[^A-Za-z0-9(]{0,4}(?:\(([A-Za-z])\)|([A-Z])(?![A-Za-z0-9'’(]|[.-][A-Za-z]|\s*[=+^_])"
    r"(?!\s+(?!(?:because|since|as|and|or|but|which|that|with|when|for|due|given|so|while|although|not|rather|based"
    r"|from|on|if|in|by)\b)[a-z]))"
)
"""An option in parentheses, or a capital that is none of a word or formula (`A man`, `B-cells`, `C++`, `B = 5`)."""
_BE = r"(?:is|(?:would|should|must|has\s+to|will)\s+be)"
_SAID = re.compile(
    r"(?i:\b(?:answer|(?:correct|right|best|final|my|closest|most\s+\w+)"
    r"\s+(?:option|choice|response|letter|statement|match|pick))\b"
    r"(?:\s+(?:to|here|that|among|of|for|from)\b[^.,:;?!\n]{0,60}?)?"
    rf"(?:[^A-Za-z0-9(]{{0,8}}\b{_BE}\b|[^A-Za-z0-9(=:\n]{{0,4}}[:=–-]|,(?=\s\(?[A-Z]\)?,))"
    r"(?:\s+(?:therefore|thus|clearly|(?:most\s+)?likely|probably|indeed|really|actually|simply|the"
    r"|not\s+\(?[A-Z]\)?,?\s+but(?:\s+rather)?))*"
    r"|(?m:^)\W{0,8}(?:(?:the|final|correct|best|my)[ \t]+)*(?:answer|choice)\b(?=[^A-Za-z0-9(\n]{0,8}\n)"
    r"|\b(?:correct|right|best)\s+(?:answer|option|choice)(?=\s\()"
    r"|\b(?:I|we)(?:['’](?:d|ll|m)|\s+(?:would|will|am))?\s+(?:choose|pick|select|go(?:ing)?\s+with|answer)\b"
    r"|\blet(?:['’]s|\s+us)\s+(?:choose|pick|select|go\s+with)\b)"
    rf"[^A-Za-z0-9(]{{0,8}}{_LETTER}"
)
"""That a reply announces its choice; `Answer A is wrong` and `the answer A` announce none."""
_ENDS = r"(?=[\s.)*\]]*(?:\n|\Z)|\.\s)"
_SO = re.compile(
    rf"(?i:\banswer\s+{_BE}\s+(?!not\b|n?either\b)(?:[^.?!;\n(]|\.(?=\d)){{1,80}}?"
    rf"(?:,\s+which\s+(?:is|corresponds\s+to|matches)\s+|\())(?i:option|choice)\s+{_LETTER}{_ENDS}"
    rf"|(?i:\b(?:it\s+(?:is|must\s+be)|it['’]s)(?:\s+(?:really|actually))?)\s+{_LETTER}{_ENDS}"
    rf"|(?i:\b(?:so|thus|therefore|hence)),?\s+{_LETTER}(?=[\s.)*]*\Z)"
    rf"|\A{_LETTER}(?=,?\s+(?:because|since)\b)"
)
"""So it does by these words, if its sentence ends with the letter or the reply begins with it."""
_DOUBT = re.compile(
    r"\b(?:if|whether|unless|suppos\w+|assum\w+|imagin\w+|(?<!no\s)doubt|unclear|unsure|unlikely|no\s+way|nobody|not|might"
    r"|may|maybe|perhaps|possibly|could|(?<!I\s)would\s+(?:say|think)|(?<!would\s)(?<!I['’]d\s)says?|said|claims?|argues?"
    r"|initially|first)\b|n['’]t\b",
    re.IGNORECASE,
)
"""That what its clause then announces is not the reply's own choice."""
_CLAUSE = re.compile(r"[.,:;?!\n]|\b(?:but|so|thus|hence|therefore|then)\b", re.IGNORECASE)
_OPEN = re.compile(r"[\s*)]{0,4}(?:\?|(?:only\s+)?if\b)")
"""So it is where this follows the letter."""
_OR_ANOTHER = re.compile(
    r"[\s*$)]{0,4}(?:,?\s?\bor\b(?:\s(?:perhaps|maybe|possibly)\b)?"
    r"|(?:and\b|[,;/&])(?=[\s*$(]{0,6}[A-Z][\s*$)]{0,4}(?:[.,;!?]|or\b|and\b|together\b|\Z)))[\s*$(]{0,6}"
    + _OPTION + r"\(?[A-Z](?![A-Za-z0-9])"
)  # fmt: skip
_IS_RIGHT = re.compile(
    _OPTION + r"(?<![A-Za-z0-9\\])(?:\(([A-J])\)|([A-J]))[*\s]{1,4}is\s+"
    r"(?:the\s+answer|(?:the\s+)?(?:correct|right|best)(?:\s+(?:answer|option|choice|one))?)\b"
    r"(?=[*\s]{0,4}(?:[.:!;)\n]|\Z|,?\s?(?:because|since|as)\b))"
)  # fmt: skip
_CLAIMED = re.compile(
    r"(?:\A|[.!?:\n]|\b(?:so|thus|therefore|hence|only|choosing|that means)|\b(?:among|of) [^.,:;\n]{1,30},"
    r"|\b(?:I|we) (?:think|believe|conclude)(?: that)?),?[\s*]*\Z",
    re.IGNORECASE,
)
"""What may stand before an option of which a reply says that it is right: no doubt, and no noun."""
_ANOTHER = re.compile(r"\b(?:go with|choose|chose|pick)\s+\(?([A-J])\b|(?<![A-Za-z])([A-J])\)?,? (?:also|too|works)\b")
_WEIGHED = re.compile(
    r"[.!?]\s+\S|\A(?:let|wait|is|was|this\s+(?:option|choice|answer|statement|one))\b", re.IGNORECASE
)
"""In what follows a label: that it is looked at, not chosen."""
_RETRACTS = re.compile(
    r"\b(?:wait|actually|however|incorrect|wrong|sorry|instead)\b|\bno,|\bnot\s+(?:right|correct)", re.IGNORECASE
)
_BEGINS = re.compile(r"(?:\([A-J]\)[.:]?|[A-J](?:\.|\s?\)))[\s*]+\S")
_OTHER = re.compile(r"(?<![A-Za-z0-9'’])(?:[B-HJ](?![A-Za-z0-9'’])|[AI](?=[.):]))")


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
    """The letter that a reply chooses, in upper case: the last one that it announces without doubt (`the answer is B`),
    else that of which it says that it is right (`B is correct`), else that which it is or begins with (`B. Paris`).
    None where it chooses none or several."""
    alone = _alone(text)
    if alone is not None:
        return alone
    right = list(_IS_RIGHT.finditer(text))
    rest = _IS_RIGHT.sub(r"\1\2 ", text)  # "B is the correct answer. A is not" does not say A
    last = next(filter(partial(_meant, rest), reversed(_announced(rest))), None)
    if last is not None:
        return _letter(last) if _OR_ANOTHER.match(rest, last.end()) is None else None
    return _claimed(text, right) if right else _begun(text)


def _announced(text: str) -> list[re.Match[str]]:
    return sorted([*_SAID.finditer(text), *_SO.finditer(text)], key=lambda said: said.end())


def _meant(text: str, said: re.Match[str]) -> bool:
    """Whether it is no question, and its clause has no doubt."""
    before = _CLAUSE.split(text[max(said.start() - 100, 0) : said.start()])[-1]
    return _DOUBT.search(before) is None and _OPEN.match(text, said.end()) is None


def _letter(said: re.Match[str]) -> str:
    return str(next(filter(None, said.groups()))).upper()


def _begun(text: str) -> str | None:
    """The letter that a reply begins with, alone or with the option's text: in its only line or, where what follows
    speaks of no other option and takes nothing back, its first paragraph."""
    first, _, after = text.partition("\n")
    alone = _alone(first.strip("* "))
    if after and (not after.startswith("\n") or _OTHER.search(after) or _RETRACTS.search(after)):
        return None
    if alone is not None:
        return alone
    label = _LABEL.fullmatch(first.strip("* ")) if _BEGINS.match(first) else None
    return labelled(first.strip("* ")) if label is not None and not _WEIGHED.search(label[3]) else None


def _claimed(text: str, right: Sequence[re.Match[str]]) -> str | None:
    """The letter of which a reply says itself that it is right, of no other one, and then chooses no other one."""
    letters = {found[1] or found[2] for found in right}
    others = {one[1] or one[2] for one in _ANOTHER.finditer(text, right[0].end())}
    claims = any(_CLAIMED.search(text, max(found.start() - 40, 0), found.start()) for found in right)
    return letters.pop() if len(letters) == 1 and others <= letters and claims else None


def _alone(text: str) -> str | None:
    found = _ALONE.fullmatch(text)
    return found[1].upper() if found is not None else None


BOX = r"\boxed{"
_BRACE = re.compile(r"[{}]")


def boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{…}` of `text`, None where there is none. In one pass: a model may write
    thousands that are never closed."""
    begin, end = 0, 0
    opened: list[int] = []
    for brace in _BRACE.finditer(text, max(text.find(BOX), 0)):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and (start := opened.pop()) > begin and text.endswith(BOX, 0, start):
            begin, end = start, brace.start()
    return text[begin:end].strip() if begin else None


MARK = "####"  # before an answer in GSM8K's solutions, and before headings in Markdown
MOST_DIGITS = 1000
_THOUSANDS = re.compile(r"[+-]?(?!0)\d{1,3}(?:,\d{3})+")
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?\d*\.\d+", re.ASCII)
_EXPONENT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d{1,3}", re.ASCII)
_RATIO = re.compile(r"([+-]?)(\d+)/(\d+)", re.ASCII)
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac *(?:\{(\d+)\}|(\d)) *(?:\{(\d+)\}|(\d))", re.ASCII)
_MIXED = re.compile(r"([+-]?)(\d+)(?: +(\d+/\d+)| *(\\[dt]?frac.+))", re.ASCII)
_RECURRING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar|dot) *(?:\{(\d+)\}|(\d))", re.ASCII)
_SET = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:bf|it|rm|sf|tt)|mbox)\s*\{([^{}]*)\}")
_CODE = re.compile(
    r"\d{4}([-/.])\d\d?\1\d\d?|\d\d?([-/.])\d\d?\2\d{4}|(?:\d{3}-)?\d{3}-\d{4}"
    r"|\d+(?:\.\d+){2,}|[+-]?0x[\da-f]+",
    re.ASCII | re.IGNORECASE,
)
_LEADING_ZEROS = re.compile(r"\b(0x)?0+(?=[\da-f])")
_IN_LINE = re.compile(r"\\\(\s*(\(?[A-Za-z]\)?)\s*\\\)")  # \(B\)
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])")
_HEADING = re.compile(r"[^\w$\\]*(?:\d+[.):]\s[^\w$\\]*)?[^\W\d_]{2,}(?![\w(^/*=])")
_ANNOUNCES = re.compile(r"\W*(?:the\s+)?(?:final\s+)?answer\W*", re.IGNORECASE)
_THOUGHT = re.compile(r"</think>|\[/THINK\]|<\|message\|>")
SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?s>|<(?:eos|end_of_turn)>|\[/?EOS\]")
"""Tokens with which models begin and end what they say."""


def final_answer(reply: str) -> str | None:
    r"""What a reply answers: what it marks (see `marked`), else the content of its last `<answer>…</answer>`; None
    without either. What it thought counts only if it says nothing then."""
    found = marked(reply)
    return _tagged(heard(reply)) if found is None else found


def marked(reply: str) -> str | None:
    r"""The content of the last `\boxed{…}`, else what the last `####` that is no heading stands before; None without
    either. A heading begins with a word, and is not the last line. A `####` outside of `<answer>…</answer>` is none."""
    reply = heard(reply)
    found = boxed(reply)
    if found is not None:
        return found
    reply = _tagged(reply) or reply
    after: list[str] = []
    for line in reversed(reply.split("\n")) if MARK in reply else ():
        before, mark, said = (part.strip() for part in line.rpartition(MARK))
        if mark and said:
            if not after or before.strip("#") or not _HEADING.match(said):
                return said
            if len(after) == 1 and _ANNOUNCES.fullmatch(said):
                return after[0]
        if len(after) < 2 and line.strip():
            after.append(line.strip())
    return None


def aloud(reply: str) -> str:
    """What a reply says once it has done thinking, as Qwen3, Mistral and gpt-oss mark it: in its last
    `<answer>…</answer>` if it has one."""
    said = _THOUGHT.split(reply)[-1]
    return _tagged(said) or said


def heard(reply: str, programs: Iterable[tuple[int, int]] = ()) -> str:
    """What a reply says once it has done thinking; all of it where that is nothing. programs: [start, end) of those in
    it, in their order: what stands in one ends no thought."""
    edges = [0, *chain.from_iterable(programs), len(reply)]
    outside = zip(edges[::2], edges[1::2], strict=True)
    ends = [mark.end() for start, end in outside for mark in _THOUGHT.finditer(reply, start, end)]
    said = reply[ends[-1] :] if ends else reply
    return said if SPECIAL.sub("", said).strip() else reply


def _tagged(reply: str) -> str | None:
    """The content of the last `<answer>…</answer>`; None where there is none, or nothing in it."""
    before, _, _ = reply.rpartition("</answer>")
    _, opened, inside = before.rpartition("<answer>")
    return inside.strip() or None if opened else None


def integer(text: str) -> int | None:
    """The integer that `text` is, as people and LaTeX write it (`1,234`, `$-5$`, `7.`); None where it is none."""
    text = (
        text.strip().removeprefix("$").removesuffix("$").replace(r"\!", "").replace(r"\,", "").strip().removesuffix(".")
    )
    if len(text) > MOST_DIGITS:
        return None
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return int(text) if _INTEGER.fullmatch(text) else None


def rational(text: str) -> Fraction | None:
    r"""The number that `text` is: an integer, a decimal (`.5`, `1.2e-5`, `0.\overline{3}`) or a
    fraction (`3/4`, `\frac{3}{4}`, `1 3/4`); None where it is none."""
    whole = integer(text)
    if whole is not None:
        return Fraction(whole)
    text = text.strip().strip("$").strip()
    if len(text) > MOST_DIGITS:
        return None
    if _DECIMAL.fullmatch(text) or _EXPONENT.fullmatch(text):
        return Fraction(text)
    if (found := _RECURRING.fullmatch(text)) is not None:
        sign, before, after, again = found[1], found[2] or "0", found[3], found[4] or found[5]
        tail = Fraction(int(again), 10 ** len(again) - 1)
        return Fraction(int(sign + "1") * (int(before + after) + tail), 10 ** len(after))
    if (found := _MIXED.fullmatch(text)) is not None:
        part = rational(found[3] or found[4])
        return int(found[1] + "1") * (int(found[2]) + part) if part is not None and part < 1 else None
    found = _FRACTION.fullmatch(text) or _RATIO.fullmatch(text)
    if found is None:
        return None
    sign, above, below = (one for one in found.groups() if one is not None)
    return Fraction(int(sign + above), int(below)) if int(below) else None


def same_code(answer: str, said: str) -> bool | None:
    """Compare dates, telephone numbers, addresses, versions and hexadecimal numbers as written, not as mathematics.

    As formulas, `2024-05-01` is 2018 and `0x2F` is 0. None where neither text is such a code.
    """
    texts = [unset(text).removesuffix(".").casefold() for text in (answer, said)]
    if not any(map(_CODE.fullmatch, texts)):
        return None
    ours, theirs = (_LEADING_ZEROS.sub(r"\1", text) for text in texts)
    return ours == theirs


def in_decimals(text: str) -> str:
    """The same, where it is a number with an exponent (`1e-7`) written out: as a formula, the `e` would be Euler's."""
    alone = text.strip().strip("$").strip()
    return f"{Decimal(alone):f}" if _EXPONENT.fullmatch(alone) else text


def same_text(answer: str, reply: str) -> bool:
    """Whether the reply's answer (where it marks none, all that it says aloud) is `answer`, but for case and white
    space."""
    said = final_answer(reply)
    return folded(aloud(reply) if said is None else said) == folded(answer)


def same_choice(answer: str, reply: str) -> bool:
    r"""Whether the reply chooses the letter `answer`: marked (`\boxed{B}`, `#### (B)`), where the option's text may
    follow (`\boxed{(B) 12}`), said (`the answer is B`, `B is correct`), or first (`B. Paris`) or alone.
    Raises ValueError where `answer` is no letter."""
    return chosen_letter(reply) == letter(answer)


def letter(answer: str) -> str:
    """The letter that an answer is, in upper case. Raises ValueError where it is none."""
    found = lettered(answer)
    if found is None:
        raise ValueError(f"answer {answer!r:.80} is not a letter: multiple choice is graded by one, such as B or (B)")
    return found


def lettered(text: str) -> str | None:
    r"""The letter that `text` is (`B`, `\textbf{(B)}`) or begins with as a label (`B. 12`, `(B) 12`), in upper case;
    None where it is none, or names another one as well."""
    return labelled(unset(text))


def chosen_letter(reply: str) -> str | None:
    """The letter that a reply chooses (see `same_choice`), in upper case; None where it chooses none, or several."""
    said = marked(reply)
    if said is not None:
        return lettered(said)
    heard = unset(aloud(reply))
    tagged = _tagged(_THOUGHT.split(reply)[-1]) is not None
    return said_letter(heard) or (said_letter(f"Answer: {heard}") if tagged else None)


def unset(text: str) -> str:
    """Without what LaTeX and Markdown put around words."""
    text = _IN_LINE.sub(r"\1", _SPACE.sub(" ", _SET.sub(r"\1", _SET.sub(r"\1", text)))).replace("**", "")
    return text.strip().strip("$*").strip()


def folded(text: str) -> str:
    """Without markup around it, in lower case, with single spaces."""
    return " ".join(unset(text).split()).casefold()
