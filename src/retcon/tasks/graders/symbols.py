r"""What people type for LaTeX: `√2`, `½`, `x²`, `90°`, `∞`, `−3`. Math-Verify does not read it."""

from __future__ import annotations

import re
import unicodedata

_POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_POWER = re.compile(f"[{_POWERS}]+")
_PLAIN = str.maketrans(_POWERS, "0123456789+-")
_PART = re.compile("[¼½¾⅐-⅞]")
_ROOT = re.compile(r"([√∛∜])\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))")
_DEGREE = {"√": "", "∛": "[3]", "∜": "[4]"}
_SIGNS = {"^°": r"^\circ ", "°": r"^\circ ", "∞": r"\infty ", "−": "-"}
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))


def in_latex(text: str) -> str:
    """The same text, with those characters as LaTeX has them."""
    if text.isascii():
        return text
    text = _PART.sub(_fraction, text)
    text = _ROOT.sub(lambda found: rf"\sqrt{_DEGREE[found[1]]}{{{found[2] or found[3] or found[4]}}}", text)
    text = _POWER.sub(lambda found: f"^{{{found[0].translate(_PLAIN)}}}", text)
    return _SIGN.sub(lambda found: _SIGNS[found[0]], text).strip()


def _fraction(found: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", found[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"
