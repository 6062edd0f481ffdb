#!/usr/bin/env bash
# One would guess that a grader which compares by sympy finds `6 - 3 i` equal to `6-3i`: both are how MATH writes its
# complex answers. Math-Verify 0.9.0 says no. It decides by a regular expression over the text whether all letters of a
# formula are real (math_verify/grader.py, should_treat_as_complex; parser.py, is_real=), where `- 3 i` is complex and
# `-3i` is not, so the two sides hold different symbols; `i` is never the imaginary unit (`i^2` is not -1). Written `I`,
# which latex2sympy2_extended 1.11.0 reads as sympy's unit, `I^2` loses its power and is I; `{I}^2` does not.
# It matters here as rewards in reinforcement learning are 0 for right answers, and by how a model spaces its formulas.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install math-verify==0.9.0 latex2sympy2_extended==1.11.0 'antlr4-python3-runtime==4.13.2' sympy==1.14.0
"$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version
from latex2sympy2_extended import latex2sympy
from math_verify import parse, verify
print("math-verify", version("math-verify"), "latex2sympy2_extended", version("latex2sympy2_extended"))
pairs = [("6-3i", "6 - 3 i"), ("6-3x", "6 - 3 x"), ("i^2", "-1"), (r"\sqrt{-4}", "2i")]
said = [verify(parse(f"${a}$"), parse(f"${b}$")) for a, b in pairs]
for (a, b), equal in zip(pairs, said):
    print(f"{a:10} {b:10} {'equal' if equal else 'not equal'}")
powers = [latex2sympy(text) for text in ("I^2", "{I}^2")]
print("I^2 is", powers[0], "and {I}^2 is", powers[1])
assert said == [False, True, False, False], "Math-Verify reads complex numbers otherwise now"
assert str(powers[0]) == "I" and str(powers[1]) != "I", "latex2sympy2_extended keeps the power now"
PY
