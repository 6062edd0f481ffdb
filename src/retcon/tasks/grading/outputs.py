"""Whether what a program printed or returned is what its test expects."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any

MOST_DIGITS = 100
"""Of a number: longer ones are compared as text."""


def same_output(expected: str, printed: str, *, exact: bool = False) -> bool:
    """Line by line, but for space around lines and empty lines at the end; a line of numbers by their values (`1.0` is
    `1`). exact: whether decimals must be equal; otherwise 1e-5 of the greater one, or 1e-8, makes no difference, as to
    the checkers of APPS, TACO and verl."""
    wanted, had = expected.strip().splitlines(), printed.strip().splitlines()
    return len(wanted) == len(had) and all(_same_line(*pair, exact) for pair in zip(wanted, had, strict=True))


def same_value(a: Any, b: Any) -> bool:
    """Equality as JSON has it: a truth is no number; floats are equal but for their last digits."""
    todo = [(a, b)]
    while todo:
        one, other = todo.pop()
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            todo += zip(one, other, strict=True)
        elif isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            todo += ((one[key], other[key]) for key in one)
        elif isinstance(one, bool) or isinstance(other, bool):
            if one is not other:
                return False
        elif isinstance(one, float) or isinstance(other, float):
            if not _close(one, other):
                return False
        elif one != other:
            return False
    return True


def _close(one: Any, other: Any) -> bool:
    if not isinstance(one, float | int) or not isinstance(other, float | int):
        return False
    try:
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    except OverflowError:  # an integer beyond every float
        return False


def _same_line(wanted: str, had: str, exact: bool) -> bool:
    if wanted.strip() == had.strip():
        return True
    ours, theirs = wanted.split(), had.split()
    return len(ours) == len(theirs) and all(_same_number(*pair, exact) for pair in zip(ours, theirs, strict=True))


def _same_number(wanted: str, had: str, exact: bool) -> bool:
    if wanted == had:
        return True
    if max(len(wanted), len(had)) > MOST_DIGITS:
        return False
    try:
        one, other = Decimal(wanted), Decimal(had)
        if one == other:
            return True
    except InvalidOperation:
        return False
    if exact or not any(sign in wanted + had for sign in ".eE") or math.isinf(float(one)):
        return False
    return math.isclose(float(one), float(other), rel_tol=1e-5, abs_tol=1e-8)
