"""Answers in other words: the same, and not the same."""

from __future__ import annotations

import re
from fractions import Fraction


def equal_forms(gold: str) -> dict[str, str]:
    """Return an answer in equivalent forms; boxed, except for the first three."""
    forms = {
        "boxed": rf"\boxed{{{gold}}}",
        "after ####": f"#### {gold}",
        "in a sentence": f"The final answer is ${gold}$.",
        "boxed twice": rf"first \boxed{{0}}, but in truth $\boxed{{{gold}}}$.",
    }
    inside: dict[str, str] = {"no spaces": re.sub(r"(?<![a-zA-Z]) ", "", gold)}
    inside["\\dfrac"] = gold.replace(r"\frac", r"\dfrac")
    inside["\\tfrac"] = gold.replace(r"\frac", r"\tfrac")
    inside["\\left \\right"] = re.sub(r"(?<!left)\(", r"\\left(", re.sub(r"(?<!right)\)", r"\\right)", gold))
    inside["without \\left \\right"] = gold.replace(r"\left", "").replace(r"\right", "")
    if re.fullmatch(r"-?\d+", gold):
        inside["n.0"] = f"{gold}.0"
        inside["2n/2"] = rf"\frac{{{2 * int(gold)}}}{{2}}"
        inside["n cm"] = rf"{gold} \text{{ cm}}"
        inside["x = n"] = f"x = {gold}"
        inside["1,000s"] = f"{int(gold):,}"
    if (value := fraction(gold)) is not None and value.denominator > 1:
        inside["2a/2b"] = rf"\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}"
        inside["a/b"] = f"{value.numerator}/{value.denominator}"
        if Fraction(round(float(value), 6)).limit_denominator(10**6) == value and 10**6 % value.denominator == 0:
            inside["decimal"] = f"{float(value):g}"
    return forms | {name: rf"\boxed{{{text}}}" for name, text in inside.items() if text != gold}


def wrong_forms(gold: str, other: str) -> dict[str, str]:
    """Answers that are not the same."""
    inside = {"of another problem": other, "empty": "", "negated": gold[1:] if gold.startswith("-") else f"-({gold})"}
    if gold.strip("0.") == "" or "\\text" in gold or "=" in gold or not re.search(r"\d", gold):
        del inside["negated"]
    if digits := list(re.finditer(r"\d", gold)):
        last = digits[-1]
        inside["a digit off"] = gold[: last.start()] + str((int(last[0]) + 1) % 10) + gold[last.end() :]
    if (value := fraction(gold)) is not None:
        inside["1 more"] = rf"\frac{{{value.numerator + value.denominator}}}{{{value.denominator}}}"
        inside["0.001 off"] = f"{float(value) + 0.001 * (1 + abs(float(value))):.9g}"
    if found := re.fullmatch(r"(\\left)?\((.*),(.*?)(\\right)?\)", gold):
        inside["closed brackets"] = f"[{found[2]},{found[3]}]"
        if found[2].strip() != found[3].strip() and "," not in found[2]:
            inside["the other way round"] = f"({found[3]},{found[2]})"
    elif re.fullmatch(r"[-\d]+(, *[-\d]+)+", gold):
        inside["one missing"] = gold.rpartition(",")[0]
    return {name: rf"\boxed{{{text}}}" for name, text in inside.items()} | {"no answer": "I do not know."}


def bare(gold: str) -> Fraction | str:
    """Reduce an answer so that obvious equivalents are equal. Such as `x = 5` and `5`."""
    right = gold.rpartition("=")[2].strip()
    value = fraction(right)
    return right if value is None else value


def fraction(gold: str) -> Fraction | None:
    """The value of a plain number or fraction."""
    found = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", gold)
    if found:
        return Fraction(int(found[1] + found[2]), int(found[3]))
    return Fraction(gold) if re.fullmatch(r"-?\d+(\.\d+)?", gold) else None
