"""What the weak teacher writes for each operation: programs that are right, that fail, and that are wrong.

Every program is Python with `{}` for the arguments. `right` runs and prints the value; `failing` raises or does not
compile, each in a way that real models show (missing import, wrong name, absent function, wrong type, syntax);
`wrong` runs and prints something else for most arguments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs for one operation."""

    right: tuple[str, ...]
    failing: tuple[str, ...]
    wrong: tuple[str, ...]


PROGRAMS: dict[str, Programs] = {
    "gcd": Programs(
        right=("import math\nprint(math.gcd({0}, {1}))", "from math import gcd\nprint(gcd({0}, {1}))"),
        failing=(
            "print(math.gcd({0}, {1}))",
            "print(gcd({0}, {1}))",
            "import math\nprint(math.hcf({0}, {1}))",
            "import math\nprint(math.gcd({0}, {1})",
        ),
        wrong=("print(min({0}, {1}))",),
    ),
    "lcm": Programs(
        right=("import math\nprint(math.lcm({0}, {1}))", "from math import lcm\nprint(lcm({0}, {1}))"),
        failing=(
            "print(math.lcm({0}, {1}))",
            "print(lcm({0}, {1}))",
            "import math\nprint(math.lowest({0}, {1}))",
            "import math\nprint(math.lcm({0}, {1})",
        ),
        wrong=("print({0} * {1})",),
    ),
    "power": Programs(
        right=("print(pow({0}, {1}, {2}))", "print({0} ** {1} % {2})"),
        failing=(
            "print(powmod({0}, {1}, {2}))",
            "import math\nprint(math.pow({0}, {1}, {2}))",
            "print(pow({0}, {1}, {2})",
            "print({0} ** {1} mod {2})",
        ),
        wrong=("print({0} * {1} % {2})",),
    ),
    "power_digits": Programs(
        right=("print(sum(map(int, str({0} ** {1}))))", "print(sum(int(d) for d in str({0} ** {1})))"),
        failing=(
            "print(sum({0} ** {1}))",
            "print(sum(str({0} ** {1})))",
            "print(digits({0} ** {1}))",
            "print(sum(map(int, {0} ** {1})))",
        ),
        wrong=("print(len(str({0} ** {1})))",),
    ),
    "primes": Programs(
        right=(
            "print(sum(all(n % d for d in range(2, n)) for n in range({0}, {1} + 1)))",
            "print(len([n for n in range({0}, {1} + 1) if all(n % d for d in range(2, n))]))",
        ),
        failing=(
            "print(sum(isprime(n) for n in range({0}, {1} + 1)))",
            "print(len([n for n in range({0}, {1} + 1) if prime(n)]))",
            "import math\nprint(math.primes({0}, {1}))",
            "print(len(n for n in range({0}, {1} + 1) if all(n % d for d in range(2, n))))",
        ),
        wrong=("print(sum(n % 2 for n in range({0}, {1} + 1)))",),
    ),
    "multiples": Programs(
        right=(
            "print(sum(n % {0} == 0 for n in range({1}, {2} + 1)))",
            "print(len([n for n in range({1}, {2} + 1) if n % {0} == 0]))",
        ),
        failing=(
            "print(count(n % {0} == 0 for n in range({1}, {2} + 1)))",
            "print(len(n for n in range({1}, {2} + 1) if n % {0} == 0))",
            "print(sum(n % {0} = 0 for n in range({1}, {2} + 1)))",
            "print(range({1}, {2} + 1).count_multiples({0}))",
        ),
        wrong=("print({2} // {0})",),
    ),
    "squares": Programs(
        right=(
            "print(sum(n * n for n in range(1, {0} + 1)) % {1})",
            "print(sum([n ** 2 for n in range(1, {0} + 1)]) % {1})",
        ),
        failing=(
            "print(sum(range(1, {0} + 1) ** 2) % {1})",
            "print(sum(square(n) for n in range(1, {0} + 1)) % {1})",
            "print(sum(n * n for n in range(1, {0} + 1) % {1}))",
            "print(sum(n * n for n in range(1, {0} + 1)) % {1}",
        ),
        wrong=("print(sum(n * n for n in range(1, {0})) % {1})",),
    ),
    "base_digits": Programs(
        right=(
            "n = {0}\nt = 0\nwhile n:\n    t += n % {1}\n    n //= {1}\nprint(t)",
            "n, t = {0}, 0\nwhile n:\n    n, d = divmod(n, {1})\n    t += d\nprint(t)",
        ),
        failing=(
            "print(sum(base({0}, {1})))",
            "n = {0}\nwhile n:\n    t += n % {1}\n    n //= {1}\nprint(t)",
            "print(sum(int(d) for d in str({0}, {1})))",
            "n = {0}\nt = 0\nwhile n\n    t += n % {1}\n    n //= {1}\nprint(t)",
        ),
        wrong=("print(sum(map(int, str({0}))))",),
    ),
    "divisors": Programs(
        right=(
            "print(sum({0} % d == 0 for d in range(1, {0} + 1)))",
            "print(len([d for d in range(1, {0} + 1) if {0} % d == 0]))",
        ),
        failing=(
            "print(len(divisors({0})))",
            "import math\nprint(math.divisors({0}))",
            "print(sum({0} % d == 0 for d in range({0})))",
            "print(len(d for d in range(1, {0} + 1) if {0} % d == 0))",
        ),
        wrong=("print(len([d for d in range(1, {0}) if {0} % d == 0]))",),
    ),
}
