r"""Conversion of answers to LaTeX that Math-Verify reads.

It covers typed symbols (`√2`, `½`, `x²`, `x**2`, `sqrt(2)`), and LaTeX that Math-Verify misreads (`\frac\pi2`,
`20{,}000\pi`, `\langle 1, 2 \rangle`, `9:24`, `\ldots`).
"""

from __future__ import annotations

import re
import unicodedata

from retcon.tasks.graders.text import find_boxed

MOST_DEEP = 40  # nested brackets that are read
_POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_POWER = re.compile(f"[{_POWERS}]+")
_PLAIN = str.maketrans(_POWERS, "0123456789+-")
_PART = re.compile("[¼½¾⅐-⅞]")
_ROOT = re.compile(r"([√∛∜])\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))")
_DEGREE = {"√": "", "∛": "[3]", "∜": "[4]"}
_SIGNS = {
    "^°": r"^\circ ", "°": r"^\circ ", "∞": r"\infty ", "−": "-", "–": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ",
    "≤": r"\le ", "≥": r"\ge ", "π": r"\pi ", "θ": r"\theta ", "∪": r"\cup ", "±": r"\pm ", "…": r"\ldots ",
}  # fmt: skip
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))
FORMULA = re.compile(
    r"(?<!\\)\$\$((?:\\.|[^$\\])+)\$\$|(?<!\\)\$(?![\s$])((?:\\.|[^$\\\n])*?(?<!\s))\$(?!\d)"
    r"|(?<!\\)\$\s((?:\\.|[^$\\\n])+)\s\$(?!\d)|(?<!\\)\\\(((?:\\[^()]|[^\\])++)\\\)"
    r"|(?<!\\)\\\[((?:\\[^\[\]]|[^\\])++)\\\]",
    re.DOTALL,
)
"""A formula between its marks; not `$5 and $6`, as in pandoc: a closing `$` cannot follow a space."""
BOLD = re.compile(r"(?<![\w)\]}*])\*\*(?=[^\s*])([^*\n]+)\*\*(?![\w(*])")

_MARKS = re.compile(
    r"^\s*(?:\\approx(?![A-Za-z])|≈)\s*|\\f?box(?:ed)?(?![A-Za-z])\s*|(?<!\\)\$(?!\d)|\\displaystyle(?![A-Za-z])|\\tag\{[^{}]*\}"
)
_MONEY = re.compile(r"(?<!\\)\$(?=\d)")
_GROUP = re.compile(r"\{,\}|,\s*\\!\s*|\s\\!\s*,\s*|(?<=\d)\\[,;] ?(?=\d{3}(?!\d))")
_SPACE = re.compile(r"(?:\\!|(?<!\\)\\[,;: ]|(?<!\\)~|\\q?quad(?![A-Za-z])|\s)++")
_SPACED = re.compile(r"(?<![\w.,^}\\])(?!0)\d{1,3}(?: \d{3})+(?![\d/])")  # 10 000
_TEXT = re.compile(r"\\(?:mbox|textnormal|text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf))\s*(?=\{)")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*")
_ANGLES = re.compile(r"\\langle(?![A-Za-z])\s*|(?<!\s)\s*\\rangle(?![A-Za-z])")
_DOTS = re.compile(r"\\[lc]?dots[cbmio]?(?![A-Za-z])|\.{3,}")
_CLOCK = re.compile(r"(?<![\d:.])(\d{1,2})\s*:\s*([0-5]\d)(?:\s*:\s*([0-5]\d))?(?![\d:.])")
_CLOCK_IN_TEXT = re.compile(r"\\text\{\s*(\d{1,2}\s*(?::\s*[0-5]\d){1,2})(?![\d:.])")
_CLOCK_ALONE = re.compile(r"\\text\{clock (\d+) (\d+)\}")
_RATIO = re.compile(r"\d+ ?[:/] ?\d+|\\[dtc]?frac\{\d+\}\{\d+\}")
_THOUSANDS = re.compile(r"[(\[\])]|\\[{}]|(?<![\d.,])(?!0)\d{1,3}(?:,\d{3})+(?![\d,])")
_DECIMAL_COMMA = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?![\d.])")
_LIST = re.compile(r"\d, +\d{3}(?!\d)")
_ARGUMENTS = re.compile(r"\\(?:[dtc]?(frac)|sqrt\s*(?:\[([^\[\]]*)\])?)(?![A-Za-z])|(?<![\\A-Za-z])sqrt(?=\s*\()")
_RAISED = re.compile(r"(?<=[\w)\]}])\s*(?:\*\*|\^)\s*(?=[\w(\\-])")
_ATOM = re.compile(r"\\[A-Za-z]+|\d|[A-Za-z]")
_EXPONENT = re.compile(r"-?(?:\d+(?:\.\d+)?|[A-Za-z])")
_NEXT = re.compile(f"{_ARGUMENTS.pattern}|(?P<raised>{_RAISED.pattern})")
_IMAGINARY = re.compile(r"\\text\{\s*i\s*\}")
_EMPTY = re.compile(r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}|∅")
_TRIGONOMETRIC = r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])"
_ANGLE = re.compile(  # a function's argument, up to the end of its term or brackets
    rf"{_TRIGONOMETRIC}\s*(?:\^\s*(?:\{{[^{{}}]*\}}|\d)\s*)?"
    rf"(?:\([^()]*\)|\{{[^{{}}]*\}}|-?(?:(?!{_TRIGONOMETRIC})[^-+=<>,()\[\]&])*)"
)
_DEGREES = re.compile(r"\s*(?:\^\s*\{\s*\\circ\s*\}|\^?\s*\\(?:circ|degree)(?![A-Za-z]))")
_CLOSES = {"{": "}", "(": ")"}
_BRACKET = re.compile(r"[{}()]")


def to_latex(text: str) -> str:
    """Convert a text to LaTeX without formula marks, spacing and sizes."""
    text = BOLD.sub(r"\1", FORMULA.sub(_inside, _typed((find_boxed(text) or text).strip())))
    text = _MARKS.sub("", _MONEY.sub(r"\$", text)).strip("`")
    text = _SPACE.sub(lambda found: " " if found[0].replace(r"\!", "") else "", _GROUP.sub(",", text))
    text = _IMAGINARY.sub("i", _EMPTY.sub(r"\\emptyset ", _SPACED.sub(_joined, _TEXT.sub(r"\\text", text))))
    text = _ANGLES.sub(lambda found: "(" if found[0].startswith(r"\l") else ")", _SIZES.sub("", text))
    text = _CLOCK_IN_TEXT.sub(r"\1\\text{", text)
    text = _CLOCK.sub(_clock, _DOTS.sub(r"\\text{dots}", text)).strip()
    text = text.removesuffix(".").strip() or text
    text = _ANGLE.sub(lambda found: _DEGREES.sub(r"\\cdot\\frac{\\pi}{180}", found[0]), text)
    return _braced(text, MOST_DEEP) if "\\" in text or "**" in text or "sqrt" in text else text


def has_list(text: str) -> bool:
    """Return whether comma and space precede three digits: `98, 118`, not thousands."""
    return _LIST.search(text) is not None


def space_commas(text: str) -> str:
    """Put a space after each comma, so that none groups thousands."""
    return re.sub(r",\s*", ", ", text)


def ungroup(text: str) -> str:
    """Remove commas that group thousands, outside lists and intervals."""
    within = 0

    def one(found: re.Match[str]) -> str:
        nonlocal within
        if found[0] in ("(", "[", r"\{"):
            within += 1
        elif not found[0][0].isdigit():
            within -= 1
        return found[0].replace(",", "") if within <= 0 else found[0]

    return _THOUSANDS.sub(one, text)


def use_decimal_point(text: str) -> str:
    """Replace a number's only comma, outside brackets, by a point: `3,5`, `1.234,5`."""
    before, _, after = text.partition(",")
    opened, closed = (sum(map(before.count, signs)) for signs in ("([{", ")]}"))
    if opened != closed or "," in after:
        return text
    return _DECIMAL_COMMA.sub(lambda found: f"{found[1].replace('.', '')}.{found[2]}", text)


def to_ratio(text: str, other: str) -> str:
    r"""Turn a time (`1:20`) into a ratio if `other` is one. text: LaTeX; other: may be a fraction."""
    found = _CLOCK_ALONE.fullmatch(text)
    return rf"\frac{{{found[1]}}}{{{found[2]}}}" if found is not None and _RATIO.fullmatch(other) else text


def _joined(found: re.Match[str]) -> str:
    """Join a number whose thousands are divided by spaces."""
    return found[0].replace(" ", "")


def _clock(found: re.Match[str]) -> str:
    """Write a time of day or a duration as a word, as it is not a ratio."""
    return rf"\text{{clock {' '.join(part for part in found.groups() if part)}}}"


def _inside(found: re.Match[str]) -> str:
    return next(filter(None, found.groups()), "")


def _typed(text: str) -> str:
    if text.isascii():
        return text
    text = _PART.sub(_fraction, text)
    text = _ROOT.sub(lambda found: rf"\sqrt{_DEGREE[found[1]]}{{{found[2] or found[3] or found[4]}}}", text)
    text = _POWER.sub(lambda found: f"^{{{found[0].translate(_PLAIN)}}}", text)
    return _SIGN.sub(lambda found: _SIGNS[found[0]], text)


def _fraction(found: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", found[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


def _braced(text: str, deep: int) -> str:
    r"""Put arguments of fractions, roots and powers in braces: `\frac\pi2`, `\sqrt6`, `x**10`, `x^(n+1)`, `sqrt(2)`."""
    parts, at, closed = list[str](), 0, _closed(text)
    while deep and (found := _NEXT.search(text, at)) is not None:
        parts.append(text[at : found.start()])
        at, raised = found.end(), found["raised"] is not None
        name = "^" if raised else r"\frac" if found[1] else rf"\sqrt[{found[2]}]" if found[2] else r"\sqrt"
        arguments, end = list[str](), at
        for _ in range(2 if found[1] else 1):
            argument, end = _argument(text, end, _EXPONENT if raised and "*" in found[0] else _ATOM, closed)
            if argument is None:
                parts.append(name if raised else found[0])
                break
            arguments.append(argument)
        else:  # recursion only here: a second one would double the time at each level
            parts.append(name + "".join(f"{{{_braced(argument, deep - 1)}}}" for argument in arguments))
            at = end
    return "".join((*parts, text[at:]))


def _closed(text: str) -> dict[int, int]:
    """Map the position of each closed brace and bracket to that of its closing one."""
    ends, opened = dict[int, int](), {closes: list[int]() for closes in _CLOSES.values()}
    for found in _BRACKET.finditer(text):
        if found[0] in _CLOSES:
            opened[_CLOSES[found[0]]].append(found.start())
        elif opened[found[0]]:
            ends[opened[found[0]].pop()] = found.start()
    return ends


def _argument(text: str, at: int, atom: re.Pattern[str], closed: dict[int, int]) -> tuple[str | None, int]:
    """Return the argument at `at`, without its braces or brackets, or None, and its end."""
    while text[at : at + 1].isspace():
        at += 1
    if at in closed:
        return text[at + 1 : closed[at]], closed[at] + 1
    found = atom.match(text, at)
    return (found[0], found.end()) if found is not None else (None, at)
