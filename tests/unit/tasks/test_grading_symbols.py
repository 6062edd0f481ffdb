"""What people type for LaTeX, and the LaTeX that Math-Verify would misread."""

import time

import pytest

from retcon.tasks.graders.symbols import to_latex, ungroup


@pytest.mark.parametrize(
    ("typed", "latex"),
    [
        ("√2", r"\sqrt{2}"), ("∛8", r"\sqrt[3]{8}"), ("2½", r"2\frac{1}{2}"), ("x¹⁰ + 10⁻³", "x^{10} + 10^{-3}"),
        ("90°", r"90^{\circ}"), ("(−∞, 3)", r"(-\infty , 3)"), ("√", "√"), (r"$3 \sqrt{6}$.", r"3 \sqrt{6}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"), (r"\dfrac{\sqrt3}2 + \frac12", r"\frac{\sqrt{3}}{2} + \frac{1}{2}"),
        ("x**2 - 1", "x^{2} - 1"), ("sqrt((a + b)**2 + 1)", r"\sqrt{(a + b)^{2} + 1}"), ("x^(n+1)", "x^(n+1)"),
        (r"2^(n+\pi)", r"2^{n+\pi}"), (r"\left\langle 1, 2 \right\rangle", "(1, 2)"),
        (r"8\!:\!34 \text { p.m.}", r"\text{clock 8 34} \text{ p.m.}"), ("3:2", "3:2"),
        (r"0,3,\ldots,9", r"0,3,\text{dots},9"), (r"111, \! 111, \! 111", "111,111,111"), ("1 000", "1000"),
        (r"10 000\pi", r"10000\pi"), ("10 500-x", "10500-x"), ("1\u2009234\u2009567", "1234567"),
        ("1 234\u2009567 km", "1234567 km"), ("$18", r"\$18"), (r"\boxed{\frac12}", r"\frac{1}{2}"),
        (r"\frac{1}{2", r"\frac{1}{2"), (r"\frac", r"\frac"),
        (r"\{ \begin{aligned} x&=1 \\ y&=2 \end{aligned}", r"\{ \begin{aligned} x&=1 \\ y&=2 \end{aligned}"),
        ("3√(x+1)", r"3\sqrt{x+1}"), (r"\(2\sqrt3.\)", r"2\sqrt{3}"), ("2**10", "2^{10}"), ("**18**", "18"),
        (r"10\,000 \mathrm{~cm}", r"10,000 \text{ cm}"),
    ],
)  # fmt: skip
def test_in_latex(typed: str, latex: str) -> None:
    assert to_latex(typed) == latex


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("1,234", "1234"), (r"\frac{20,000}{\pi}", r"\frac{20000}{\pi}"), ("$1,234.50", "$1234.50"),
        ("(1,234, 5)", "(1,234, 5)"), (r"\{100,200\}", r"\{100,200\}"), ("1,23", "1,23"), ("0,125", "0,125"),
    ],
)  # fmt: skip
def test_commas_that_part_thousands(text: str, without: str) -> None:
    assert ungroup(text) == without


@pytest.mark.parametrize(
    "piece", ["(", "{", "^(", r"\frac{", r"\sqrt[", "**", "7,111", r"\begin{align}", "$", r"\text{", ",\\! ", "x**("]
)
def test_a_long_answer_is_read_in_no_time(piece: str) -> None:
    start = time.process_time()
    to_latex(piece * 1000)
    ungroup(piece * 1000)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("opens", [r"\frac{", r"\frac1{", r"\sqrt{", "sqrt(", "x^{", "x^(", "2**("])
@pytest.mark.parametrize("behind", ["", "{2}"])
def test_what_nests_is_read_in_linear_time(opens: str, behind: str) -> None:
    closes = {"{": "}", "(": ")"}[opens[-1]] + behind
    text = opens * 20 + "1" + closes * 20
    start = time.process_time()
    to_latex(text)
    assert time.process_time() - start < 1
    to_latex(opens * 300 + "1" + closes * 300)
    assert time.process_time() - start < 2
