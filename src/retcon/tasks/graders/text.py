r"""Extraction and comparison of answers as texts, letters and plain numbers.

Pure functions, a fraction of a millisecond each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain

# The letter of an option, in a marked answer (`B. Vitamin C`) and in a reply without marks (`B is correct.`).
#
# Pure functions of text without markup. A reply that chooses several letters has no letter.

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
"""An option in parentheses, or a capital outside words and formulas (`A man`, `B-cells`, `C++`, `B = 5`)."""
_BE = r"(?:is|(?:would|should|must|has\s+to|will)\s+be)"
_ANNOUNCEMENT = re.compile(
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
"""A reply announces its choice; `Answer A is wrong` and `the answer A` do not."""
_ENDS = r"(?=[\s.)*\]]*(?:\n|\Z)|\.\s)"
_SO = re.compile(
    rf"(?i:\banswer\s+{_BE}\s+(?!not\b|n?either\b)(?:[^.?!;\n(]|\.(?=\d)){{1,80}}?"
    rf"(?:,\s+which\s+(?:is|corresponds\s+to|matches)\s+|\())(?i:option|choice)\s+{_LETTER}{_ENDS}"
    rf"|(?i:\b(?:it\s+(?:is|must\s+be)|it['’]s)(?:\s+(?:really|actually))?)\s+{_LETTER}{_ENDS}"
    rf"|(?i:\b(?:so|thus|therefore|hence)),?\s+{_LETTER}(?=[\s.)*]*\Z)"
    rf"|\A{_LETTER}(?=,?\s+(?:because|since)\b)"
)
"""Words that announce a choice if their sentence ends with the letter or the reply begins with it."""
_DOUBT = re.compile(
    r"\b(?:if|whether|unless|suppos\w+|assum\w+|imagin\w+|(?<!no\s)doubt|unclear|unsure|unlikely|no\s+way|nobody|not|might"
    r"|may|maybe|perhaps|possibly|could|(?<!I\s)would\s+(?:say|think)|(?<!would\s)(?<!I['’]d\s)says?|said|claims?|argues?"
    r"|initially|first)\b|n['’]t\b",
    re.IGNORECASE,
)
"""Words that make a clause's announcement not the reply's own choice."""
_CLAUSE = re.compile(r"[.,:;?!\n]|\b(?:but|so|thus|hence|therefore|then)\b", re.IGNORECASE)
_OPEN = re.compile(r"[\s*)]{0,4}(?:\?|(?:only\s+)?if\b)")
"""Text after the letter that has the same effect."""
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
"""Text allowed before an option that a reply calls right: no doubt, and no noun."""
_ANOTHER = re.compile(r"\b(?:go with|choose|chose|pick)\s+\(?([A-J])\b|(?<![A-Za-z])([A-J])\)?,? (?:also|too|works)\b")
_WEIGHED = re.compile(
    r"[.!?]\s+\S|\A(?:let|wait|is|was|this\s+(?:option|choice|answer|statement|one))\b", re.IGNORECASE
)
"""Text after a label that weighs the option instead of choosing it."""
_RETRACTS = re.compile(
    r"\b(?:wait|actually|however|incorrect|wrong|sorry|instead)\b|\bno,|\bnot\s+(?:right|correct)", re.IGNORECASE
)
_BEGINS = re.compile(r"(?:\([A-J]\)[.:]?|[A-J](?:\.|\s?\)))[\s*]+\S")
_OTHER = re.compile(r"(?<![A-Za-z0-9'’])(?:[B-HJ](?![A-Za-z0-9'’])|[AI](?=[.):]))")


def read_label(text: str) -> str | None:
    """Read a letter (`B`, `(b)`) or a label (`B. 12`, `(B) 12`), in upper case. None for other texts, and for several
    options (`B. 12 or C`, `(B) 12, (C) 13`)."""
    alone = _alone(text)
    if alone is not None or (label := _LABEL.fullmatch(text)) is None:
        return alone
    first, option = (label[1] or label[2]).upper(), label[3]
    named = {"".join(found).upper() for found in _NAMED.findall(option)}
    return first if named <= {first} else None


def find_choice(text: str) -> str | None:
    """Find the letter that a reply chooses, in upper case; None for none or several. It is the last one announced
    without doubt (`the answer is B`), else one called right (`B is correct`), else the reply itself or its label
    (`B. Paris`)."""
    alone = _alone(text)
    if alone is not None:
        return alone
    right = list(_IS_RIGHT.finditer(text))
    rest = _IS_RIGHT.sub(r"\1\2 ", text)  # "B is the correct answer. A is not" does not choose A
    last = next(filter(partial(_meant, rest), reversed(_announced(rest))), None)
    if last is not None:
        return _letter(last) if _OR_ANOTHER.match(rest, last.end()) is None else None
    return _claimed(text, right) if right else _begun(text)


def _announced(text: str) -> list[re.Match[str]]:
    return sorted([*_ANNOUNCEMENT.finditer(text), *_SO.finditer(text)], key=lambda found: found.end())


def _meant(text: str, found: re.Match[str]) -> bool:
    """Return whether an announcement is not a question, and its clause has no doubt."""
    before = _CLAUSE.split(text[max(found.start() - 100, 0) : found.start()])[-1]
    return _DOUBT.search(before) is None and _OPEN.match(text, found.end()) is None


def _letter(found: re.Match[str]) -> str:
    return str(next(filter(None, found.groups()))).upper()


def _begun(text: str) -> str | None:
    """Find the letter, alone or a label, in a reply's only line, or in its first paragraph if the rest names no other
    option and retracts nothing."""
    first, _, after = text.partition("\n")
    alone = _alone(first.strip("* "))
    if after and (not after.startswith("\n") or _OTHER.search(after) or _RETRACTS.search(after)):
        return None
    if alone is not None:
        return alone
    label = _LABEL.fullmatch(first.strip("* ")) if _BEGINS.match(first) else None
    return read_label(first.strip("* ")) if label is not None and not _WEIGHED.search(label[3]) else None


def _claimed(text: str, right: Sequence[re.Match[str]]) -> str | None:
    """Find the only letter that a reply itself calls right, unless it then chooses another one."""
    letters = {found[1] or found[2] for found in right}
    others = {one[1] or one[2] for one in _ANOTHER.finditer(text, right[0].end())}
    claims = any(_CLAIMED.search(text, max(found.start() - 40, 0), found.start()) for found in right)
    return letters.pop() if len(letters) == 1 and others <= letters and claims else None


def _alone(text: str) -> str | None:
    found = _ALONE.fullmatch(text)
    return found[1].upper() if found is not None else None


BOX = r"\boxed{"
_BRACE = re.compile(r"[{}]")


def find_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}`, or None. In one pass: a model may write thousands that are
    never closed."""
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
"""Special tokens at the beginning and end of messages."""


def final_answer(reply: str) -> str | None:
    r"""Return the answer that a reply marks, or None. The mark is that of `find_marked`, else the last
    `<answer>…</answer>`. Thinking counts only if nothing follows it."""
    found = find_marked(reply)
    return _tagged(visible_reply(reply)) if found is None else found


def find_marked(reply: str) -> str | None:
    r"""Return the last `\boxed{…}`, or the text after the last `####`. None without either. A `####` may not be a
    heading, which begins with a word, and is not the last line; nor may it be outside of an `<answer>…</answer>`."""
    reply = visible_reply(reply)
    found = find_boxed(reply)
    if found is not None:
        return found
    reply = _tagged(reply) or reply
    after: list[str] = []
    for line in reversed(reply.split("\n")) if MARK in reply else ():
        before, mark, answer = (part.strip() for part in line.rpartition(MARK))
        if mark and answer:
            if not after or before.strip("#") or not _HEADING.match(answer):
                return answer
            if len(after) == 1 and _ANNOUNCES.fullmatch(answer):
                return after[0]
        if len(after) < 2 and line.strip():
            after.append(line.strip())
    return None


def strip_thinking(reply: str) -> str:
    """Return a reply without thinking, or its last `<answer>…</answer>`. Marks of Qwen3, Mistral and gpt-oss end
    thinking."""
    rest = _THOUGHT.split(reply)[-1]
    return _tagged(rest) or rest


def visible_reply(reply: str, programs: Iterable[tuple[int, int]] = ()) -> str:
    """Return a reply without its thinking, if anything follows that. programs: [start, end) of programs in it,
    in order: marks inside them do not end thinking."""
    edges = [0, *chain.from_iterable(programs), len(reply)]
    outside = zip(edges[::2], edges[1::2], strict=True)
    ends = [mark.end() for start, end in outside for mark in _THOUGHT.finditer(reply, start, end)]
    rest = reply[ends[-1] :] if ends else reply
    return rest if SPECIAL.sub("", rest).strip() else reply


def _tagged(reply: str) -> str | None:
    """Return the content of the last `<answer>…</answer>`; None if missing or empty."""
    before, _, _ = reply.rpartition("</answer>")
    _, opened, inside = before.rpartition("<answer>")
    return inside.strip() or None if opened else None


def parse_integer(text: str) -> int | None:
    """Parse an integer of people or LaTeX (`1,234`, `$-5$`, `7.`), else None."""
    text = (
        text.strip().removeprefix("$").removesuffix("$").replace(r"\!", "").replace(r"\,", "").strip().removesuffix(".")
    )
    if len(text) > MOST_DIGITS:
        return None
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return int(text) if _INTEGER.fullmatch(text) else None


def parse_rational(text: str) -> Fraction | None:
    r"""Parse an integer, decimal or fraction, else None: `.5`, `1.2e-5`, `0.\overline{3}`; `3/4`, `\frac{3}{4}`,
    `1 3/4`."""
    whole = parse_integer(text)
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
        part = parse_rational(found[3] or found[4])
        return int(found[1] + "1") * (int(found[2]) + part) if part is not None and part < 1 else None
    found = _FRACTION.fullmatch(text) or _RATIO.fullmatch(text)
    if found is None:
        return None
    sign, above, below = (one for one in found.groups() if one is not None)
    return Fraction(int(sign + above), int(below)) if int(below) else None


def same_code(answer: str, other: str) -> bool | None:
    """Compare dates, telephone numbers, versions and similar codes as written.

    As formulas, `2024-05-01` is 2018 and `0x2F` is 0. None where neither text is such a code.
    """
    texts = [strip_markup(text).removesuffix(".").casefold() for text in (answer, other)]
    if not any(map(_CODE.fullmatch, texts)):
        return None
    ours, theirs = (_LEADING_ZEROS.sub(r"\1", text) for text in texts)
    return ours == theirs


def expand_exponent(text: str) -> str:
    """Write a number with an exponent (`1e-7`) in decimals. In a formula, `e` would be Euler's number."""
    alone = text.strip().strip("$").strip()
    return f"{Decimal(alone):f}" if _EXPONENT.fullmatch(alone) else text


def same_text(answer: str, reply: str) -> bool:
    """Compare the reply's answer with `answer`, ignoring case and white space. Without a mark, all after its thinking
    is the answer."""
    found = final_answer(reply)
    return normalize(strip_thinking(reply) if found is None else found) == normalize(answer)


def same_choice(answer: str, reply: str) -> bool:
    r"""Return whether the reply chooses the letter `answer`: marked (`\boxed{B}`, `#### (B)`), maybe with the option's
    text (`\boxed{(B) 12}`), announced (`the answer is B`, `B is correct`), or first (`B. Paris`) or alone. Raises
    ValueError where `answer` is not a letter."""
    return chosen_letter(reply) == answer_letter(answer)


def answer_letter(answer: str) -> str:
    """Return the letter of an answer, in upper case. Raises ValueError for other texts."""
    found = read_letter(answer)
    if found is None:
        raise ValueError(f"answer {answer!r:.80} is not a letter: multiple choice is graded by one, such as B or (B)")
    return found


def read_letter(text: str) -> str | None:
    r"""Read a letter (`B`, `\textbf{(B)}`) or a label (`B. 12`, `(B) 12`), in upper case. None for other texts, and for
    several letters."""
    return read_label(strip_markup(text))


def chosen_letter(reply: str) -> str | None:
    """Return the letter that a reply chooses, in upper case; None for none or several (`same_choice`)."""
    marked = find_marked(reply)
    if marked is not None:
        return read_letter(marked)
    text = strip_markup(strip_thinking(reply))
    tagged = _tagged(_THOUGHT.split(reply)[-1]) is not None
    return find_choice(text) or (find_choice(f"Answer: {text}") if tagged else None)


def strip_markup(text: str) -> str:
    """Remove LaTeX's and Markdown's markup around words."""
    text = _IN_LINE.sub(r"\1", _SPACE.sub(" ", _SET.sub(r"\1", _SET.sub(r"\1", text)))).replace("**", "")
    return text.strip().strip("$*").strip()


def normalize(text: str) -> str:
    """Remove markup, and return lower case with single spaces."""
    return " ".join(strip_markup(text).split()).casefold()
