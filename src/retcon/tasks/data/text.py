r"""What makes two questions the same, and the words that overlap is counted in. Linear in the text.

`$x = 1$` and `\[x=1.\]` are the same question, `\cos 150^\circ` and `\cos(-150^\circ)` are not: only layout is taken
away, never a digit, a sign or a name.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad)(?![A-Za-z])"  # how formulas are set
    r"|\\[\[\]()]|\\?\$"  # where formulas begin and end
    r"|\\[,;:! ]"  # space within them
)
_ALIASES = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\neq": r"\ne", r"\leq": r"\le", r"\geq": r"\ge"}
_ALIAS = re.compile(r"\\(?:dfrac|tfrac|neq|leq|geq)(?![A-Za-z])")
_CAPITAL = re.compile(r"(?<![\\\w])[A-Z](?=[a-z]{2})")  # of a word: `A`, `AB` and `\Delta` are names
_IDLE_SPACE = re.compile(r" (?!\w)|(?<!\w) ")
_WORD = re.compile(r"[^\W_]+")
_APART = {"<super>": "^", "<sub>": "_", "<fraction>": " "}
_MARKED = {
    code: f"{_APART[kind]}{chr(code)}"
    for code in range(0x80, 0x3000)
    if (kind := unicodedata.decomposition(chr(code)).partition(" ")[0]) in _APART
}
"""Characters that Unicode takes for plain ones at another height, with what keeps them apart: `2²` is not `22`."""


NAMED = 12
"""Digits of its key that a question without an id is named by."""


def canonical(question: str) -> str:
    """The question without what is mere layout: space, marks of formulas, capitals that begin words, a full stop."""
    text = _plain(question)
    text = _ALIAS.sub(lambda found: _ALIASES[found[0]], _LAYOUT.sub(" ", text))
    text = _CAPITAL.sub(lambda found: found[0].lower(), text)
    return _IDLE_SPACE.sub("", " ".join(text.split())).rstrip(" .?")


def key(question: str) -> str:
    """32 hexadecimal digits that tell a question, but for layout: the same on every machine."""
    return hashlib.sha256(canonical(question).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case; those of drawings (`[asy] … [/asy]`) are none."""
    begun = text.split("[asy]")
    told = " ".join([begun[0], *(part.partition("[/asy]")[2] or part for part in begun[1:])])
    return _WORD.findall(_plain(told).casefold())


def _plain(text: str) -> str:
    """In characters that are not mere forms of others."""
    return unicodedata.normalize("NFKC", text.translate(_MARKED))
