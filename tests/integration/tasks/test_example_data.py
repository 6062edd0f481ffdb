"""The problems of `examples/own_data`: all are read, all can be graded, and their answers are worked out again here."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from itertools import count
from math import comb, factorial, gcd, isqrt, lcm
from pathlib import Path

import pytest

from datafiles import read

FILE = Path(__file__).parents[3] / "examples" / "own_data" / "problems.jsonl"


def prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, isqrt(n) + 1))


def in_base(n: int, base: int) -> str:
    return (in_base(n // base, base) if n >= base else "") + str(n % base)


def ordered_sums(total: int, parts: tuple[int, ...]) -> int:
    ways = [1] + [0] * total
    for n in range(1, total + 1):
        ways[n] = sum(ways[n - part] for part in parts if part <= n)
    return ways[total]


def fib(a: int, b: int, n: int) -> int:
    return a if n == 1 else fib(b, a + b, n - 1)


BY_LINE: dict[int, Callable[[], object]] = {
    1: lambda: 23 * 18 + 11,
    2: lambda: sum(n for n in range(1, 301) if n % 7 == 0 and n % 3),
    3: lambda: sum(str(n).count("9") == 1 for n in range(1, 1001)),
    4: lambda: pow(3, 2026, 1000),
    5: lambda: Fraction(sum(isqrt(a * b) ** 2 == a * b for a in range(1, 7) for b in range(1, 7)), 36),
    6: lambda: 1 / (Fraction(1, 8) + Fraction(1, 12)),
    7: lambda: ordered_sums(20, (1, 2, 5)),
    8: lambda: max(p for p in range(2, 1001) if 1_000_027 % p == 0 and prime(p)),
    9: lambda: next(n for n in count(1) if sum(n % d == 0 for d in range(1, n + 1)) == 12),
    10: lambda: next(a for a in range(1, 27) if a * (27 - a) == 180 and a >= 27 - a),
    11: lambda: Fraction(12 + 7, 5 - 3),
    12: lambda: Fraction(80) * Fraction(5, 4) * Fraction(4, 5),
    13: lambda: Fraction(4375, 10000),
    14: lambda: float(Fraction(15, 100) * 64),
    15: lambda: Fraction(45) / Fraction(9, 4),
    16: lambda: comb(12, 2),
    17: lambda: factorial(8) // (factorial(3) * factorial(3)),
    18: lambda: gcd(6188, 4709),
    19: lambda: lcm(84, 90, 125),
    20: lambda: int(in_base(2026, 7)),
    21: lambda: 0x3F2,
    22: lambda: len(str(factorial(250))) - len(str(factorial(250)).rstrip("0")),
    23: lambda: sum(map(int, str(2**100))),
    24: lambda: fib(2, 5, 20),
    25: lambda: Fraction(comb(5, 2), comb(12, 2)),
    26: lambda: sum(prime(n * n + n + 41) for n in range(1, 501)),
    27: lambda: sum((2 * n + 1) ** 2 for n in range(25)),
    34: lambda: {x for x in range(-50, 51) if x * x == 6 * x - 8},
    35: lambda: next((x, y) for x in range(-20, 21) for y in range(-40, 41) if y == 2 * x + 1 and y == 7 - x),
    38: lambda: isqrt(21 * 8 * 7 * 6),
    39: lambda: "ABCD"[[prime(n) for n in (221, 223, 247, 253)].index(True)],
    40: lambda: "ABCD"[(-3, 3, -4, 3.5).index(7 // -2)],
    41: lambda: "ABCD"[(6, 8, 10, 12).index(3 * 2**2)],
    42: lambda: "ABCD"[max(range(4), key=[2**30, 3**19, 5**13, 7**11].__getitem__)],
    43: lambda: date(2031, 7, 14).strftime("%A"),
    45: lambda: "stressed"[::-1],
    46: lambda: codecs.encode("retcon", "rot13"),
    47: lambda: min(["lantern", "lanyard", "language", "lantana"]),
    48: lambda: f"{181:b}",
    50: lambda: (date(2025, 11, 17) - date(2024, 3, 3)).days,
}
"""What a line's question asks, worked out; lines that are not here have no number for an answer."""


def written(value: object) -> str:
    if isinstance(value, Fraction) and value.denominator > 1:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    if isinstance(value, set):
        return rf"\{{{', '.join(map(str, sorted(value)))}\}}"
    return str(value)


def test_all_fifty_are_read_as_they_are() -> None:
    source = read(str(FILE))
    assert (source.rows, len(source.train), dict(source.dropped)) == (50, 50, {})
    assert {p.task.meta["grader"] for p in source.train} == {"math", "exact", "choice"}


@pytest.mark.parametrize("line", BY_LINE)
def test_an_answer_is_right(line: int) -> None:
    rows = [json.loads(row) for row in FILE.read_text(encoding="utf-8").splitlines()]
    assert rows[line - 1]["answer"] == written(BY_LINE[line]())
