"""Hypothesis strategies for pairs of programs: long enough that similarity does not compare all their characters."""

from __future__ import annotations

from hypothesis import strategies as st

LINES = [
    "import math\n", "def solve(numbers, threshold):\n", "    for i in range(len(numbers)):\n",
    "        for j in range(i + 1, len(numbers)):\n", "            if abs(numbers[i] - numbers[j]) < threshold:\n",
    "                return True\n", "                    total += 1\n", "                        total += 2\n",
    "    return False\n", "print(solve([1.0, 2.0, 3.0], 0.5))\n", "print(solve([1.0, 2.0, 3.0], 0.3))\n",
    "result = math.gcd(84, 36)\n", "print(result)\n", "print(x)\n", "\n", "# naïve → 数\n", "x = 1\n",
]  # fmt: skip
programs = st.lists(st.sampled_from(LINES), min_size=15, max_size=40)
"""As lists of lines."""


@st.composite
def code_pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Unrelated programs, or one and what edits, moves and repetitions made of it; 200 to 1,500 characters each."""
    a = draw(programs)
    if draw(st.booleans()):
        return "".join(a), "".join(draw(programs))
    b = "".join(a)
    for _ in range(draw(st.integers(1, 8))):
        i, j = sorted(draw(st.tuples(st.integers(0, len(b)), st.integers(0, len(b)))))
        near = min(j, i + draw(st.integers(0, 12)))
        b = draw(
            st.sampled_from(
                [
                    b[:i] + b[near:],  # a few characters dropped
                    b[:i] + "str(" + b[i:],
                    b[:i] + "    " + b[i:],
                    b[j:] + b[i:j] + b[:i],  # blocks moved
                    b[:i] + b[i : i + 40] + b[i:],  # something said twice
                ]
            )
        )
    return "".join(a), b[:1500]
