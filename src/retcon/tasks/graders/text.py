r"""Grading by the text of the answer alone: what a reply's answer is, and whether it is the same text or letter.

Pure functions, a fraction of a millisecond each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from itertools import chain

from retcon.tasks.grade import boxed
from retcon.tasks.graders.letters import labelled, said_letter

MARK = "####"  # before an answer in GSM8K's solutions, and before headings in Markdown
MOST_DIGITS = 1000
_THOUSANDS = re.compile(r"[+-]?(?!0)\d{1,3}(?:,\d{3})+")
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?\d*\.\d+", re.ASCII)
_SCIENTIFIC = re.compile(
    r"([+-]?(?:\d+(?:\.\d+)?|\.\d+)) *(?:\\(?:times|cdot)|[*x×]) *10\^(?:\{([+-]?\d{1,3})\}|([+-]?\d{1,3}))", re.ASCII
)
_EXPONENT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d{1,3}", re.ASCII)
_RATIO = re.compile(r"([+-]?)(\d+)/(\d+)", re.ASCII)
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac *(?:\{(\d+)\}|(\d)) *(?:\{(\d+)\}|(\d))", re.ASCII)
_MIXED = re.compile(r"([+-]?)(\d+)(?: +(\d+/\d+)| *(\\[dt]?frac.+))", re.ASCII)
_RECURRING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar|dot) *(?:\{(\d+)\}|(\d))", re.ASCII)
_SET = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:bf|it|rm|sf|tt)|mbox)\s*\{([^{}]*)\}")
_IN_LINE = re.compile(r"\\\(\s*(\(?[A-Za-z]\)?)\s*\\\)")  # \(B\)
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4})", re.ASCII)
DATE_AT_END = re.compile(rf"(?<![\w.,:/-])(?:{_DATE.pattern})\Z", re.ASCII)
_DOTTED = re.compile(r"(?!\d{1,3}(?:\.\d{3})+$)\d+(?:\.\d+){2,}", re.ASCII)  # 1.234.567 has its thousands parted
_TELEPHONE = re.compile(r"(?:\d{3}-)?\d{3}-\d{4}", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")
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
    r"""The number that `text` is: an integer, a decimal (`.5`, `1.2 \times 10^{-5}`, `1.2e-5`, `0.\overline{3}`)
    or a fraction (`3/4`, `\frac{3}{4}`, `1 3/4`); None where it is none."""
    whole = integer(text)
    if whole is not None:
        return Fraction(whole)
    text = text.strip().strip("$").strip()
    if len(text) > MOST_DIGITS:
        return None
    if _DECIMAL.fullmatch(text) or _EXPONENT.fullmatch(text):
        return Fraction(text)
    if (found := _SCIENTIFIC.fullmatch(text)) is not None:
        return Fraction(f"{found[1]}e{found[2] or found[3]}")
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
    """Whether `said` is the date (`2024-05-01`), telephone number (`555-1234`), address or version (`192.168.0.1`) that
    `answer` is; False too where `answer` is a number and `said` one of these or hexadecimal (`0x5`); else None. As
    formulas these would be differences and products."""
    ours, theirs = (unset(text).removesuffix(".") for text in (answer, said))
    if (date := _DATE.fullmatch(ours)) is not None:
        other = _DATE.fullmatch(theirs)
        return other is not None and _parts(date) == _parts(other)
    if _DOTTED.fullmatch(ours) or _TELEPHONE.fullmatch(ours):
        return ours == theirs
    codes = (_DATE, _TELEPHONE, _HEXADECIMAL)
    return False if rational(ours) is not None and any(code.fullmatch(theirs) for code in codes) else None


def _parts(date: re.Match[str]) -> list[int | None]:
    """Each in its place: the year first or last."""
    return [int(part) if part else None for part in date.group(1, 3, 4, 5, 7, 8)]


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
