"""Characters that people type for LaTeX."""

import pytest

from retcon.tasks.graders.symbols import in_latex


@pytest.mark.parametrize(
    ("typed", "latex"),
    [
        ("√2", r"\sqrt{2}"),
        ("3√(x+1)", r"3\sqrt{x+1}"),
        ("∛8", r"\sqrt[3]{8}"),
        ("2½", r"2\frac{1}{2}"),
        ("⅒", r"\frac{1}{10}"),
        ("x¹⁰ + 10⁻³", "x^{10} + 10^{-3}"),
        ("90°", r"90^\circ"),
        ("90^°", r"90^\circ"),
        ("(−∞, 3)", r"(-\infty , 3)"),
        ("π", "π"),
        ("√", "√"),
        (r"\sqrt{2} ", r"\sqrt{2} "),
    ],
)
def test_in_latex(typed: str, latex: str) -> None:
    assert in_latex(typed) == latex
