"""The number problems: a chain of steps, each easy with Python and hard without. By default there are two.

    let x be the gcd of 4821 and 1233. find 17 to the power x mod 997.

Nine operations. Every step but the last gives a name to its value (kept in 2..999), which the next one uses. A problem
is drawn from a seeded stream; its text decides by hash which split it belongs to, so that training and evaluation
cannot overlap whatever the seeds.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from retcon.tasks.types import Split, Task

X_MIN, X_MAX = 2, 999
LETTERS = "xyzuvw"  # of the steps' values, in order
MAX_STEPS = len(LETTERS) + 1
EVALUATION_SHARE = 8  # one problem in eight belongs to the evaluation split


@dataclass(frozen=True, slots=True)
class Operation:
    """One of the nine: its words, how its arguments are drawn, and what it is worth.

    `phrase` has one `{}` per argument. `draw` gives arguments for the first step; `draw_with(rng, x)` gives those of
    a later one, with x, the value before, at position `x_at`.
    """

    name: str
    phrase: str
    x_at: int
    draw: Callable[[random.Random], tuple[int, ...]]
    draw_with: Callable[[random.Random, int], tuple[int, ...]]
    value: Callable[..., int]


@dataclass(frozen=True, slots=True)
class Step:
    """An operation with its arguments; `x_at` is the position that the question calls `letter`, the value of the step
    before, None in the first step."""

    operation: Operation
    args: tuple[int, ...]
    x_at: int | None = None
    letter: str = "x"

    @property
    def phrase(self) -> str:
        words = [str(a) for a in self.args]
        if self.x_at is not None:
            words[self.x_at] = self.letter
        return self.operation.phrase.format(*words)

    @property
    def value(self) -> int:
        return self.operation.value(*self.args)

    def after(self, value: int) -> Step:
        """The step as someone takes it for whom the step before came to `value`, right or wrong."""
        if self.x_at is None:
            return self
        return replace(self, args=(*self.args[: self.x_at], value, *self.args[self.x_at + 1 :]))


@dataclass(frozen=True, slots=True)
class NumberProblem:
    """Two steps or more; the value of each is an argument of the next one."""

    steps: tuple[Step, ...]

    @property
    def question(self) -> str:
        *named, last = self.steps
        lets = "".join(f"let {letter} be {step.phrase}. " for letter, step in zip(LETTERS, named, strict=False))
        return f"{lets}find {last.phrase}."

    @property
    def answer(self) -> int:
        return self.steps[-1].value

    @property
    def split(self) -> Split:
        digest = hashlib.sha256(self.question.encode()).digest()
        return "evaluation" if digest[0] % EVALUATION_SHARE == 0 else "train"

    def task(self) -> Task:
        digest = hashlib.sha256(self.question.encode()).hexdigest()
        return Task(
            id=f"numbers/{digest[:12]}",
            question=self.question,
            answer=str(self.answer),
            meta={"operations": [step.operation.name for step in self.steps]},
        )


def _digits_in_base(n: int, base: int) -> int:
    total = 0
    while n:
        total += n % base
        n //= base
    return total


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def _draw_gcd(rng: random.Random) -> tuple[int, ...]:
    g = rng.randint(2, 99)
    i, j = rng.randint(3, 60), rng.randint(3, 60)
    return g * i, g * j


def _draw_range(rng: random.Random) -> tuple[int, int]:
    low = rng.randint(2, 400)
    return low, low + rng.randint(20, 400)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "gcd",
        "the gcd of {} and {}",
        0,
        _draw_gcd,
        lambda rng, x: (x, rng.randint(2, 9) * x if rng.random() < 0.5 else rng.randint(100, 5000)),
        math.gcd,
    ),
    Operation(
        "lcm",
        "the lcm of {} and {}",
        0,
        lambda rng: (rng.randint(2, 40), rng.randint(2, 40)),
        lambda rng, x: (x, rng.randint(2, 99)),
        math.lcm,
    ),
    Operation(
        "power",
        "{} to the power {} mod {}",
        1,
        lambda rng: (rng.randint(2, 99), rng.randint(2, 99), rng.randint(100, 999)),
        lambda rng, x: (rng.randint(2, 99), x, rng.randint(100, 999)),
        pow,
    ),
    Operation(
        "power_digits",
        "the digit sum of {} to the power {}",
        1,
        lambda rng: (rng.randint(2, 99), rng.randint(2, 60)),
        lambda rng, x: (rng.randint(2, 99), x),
        lambda a, e: sum(map(int, str(a**e))),
    ),
    Operation(
        "primes",
        "the number of primes from {} to {}",
        0,
        _draw_range,
        lambda rng, x: (x, x + rng.randint(20, 400)),
        lambda a, b: sum(_is_prime(n) for n in range(a, b + 1)),
    ),
    Operation(
        "multiples",
        "the number of multiples of {} from {} to {}",
        1,
        lambda rng: (rng.randint(2, 19), *_draw_range(rng)),
        lambda rng, x: (rng.randint(2, 19), x, x + rng.randint(100, 4000)),
        lambda k, a, b: b // k - (a - 1) // k,
    ),
    Operation(
        "squares",
        "the sum of squares from 1 to {} mod {}",
        0,
        lambda rng: (rng.randint(10, 999), rng.randint(100, 999)),
        lambda rng, x: (x, rng.randint(100, 999)),
        lambda n, m: sum(i * i for i in range(1, n + 1)) % m,
    ),
    Operation(
        "base_digits",
        "the digit sum of {} in base {}",
        0,
        lambda rng: (rng.randint(1000, 99999), rng.randint(3, 16)),
        lambda rng, x: (x, rng.randint(2, 9)),
        _digits_in_base,
    ),
    Operation(
        "divisors",
        "the number of divisors of {}",
        0,
        lambda rng: (rng.randint(2, 60) * rng.randint(2, 80),),
        lambda _, x: (x,),
        lambda n: sum(n % d == 0 for d in range(1, n + 1)),
    ),
)


def draw_problem(rng: random.Random, steps: int = 2) -> NumberProblem:
    """One problem from the stream `rng`, of either split."""
    drawn: list[Step] = []
    while len(drawn) < steps:
        operation = rng.choice(OPERATIONS)
        if drawn:
            args = operation.draw_with(rng, drawn[-1].value)
            step = Step(operation, args, operation.x_at, LETTERS[len(drawn) - 1])
        else:
            step = Step(operation, operation.draw(rng))
        if len(drawn) == steps - 1 or X_MIN <= step.value <= X_MAX:
            drawn.append(step)
    return NumberProblem(tuple(drawn))


def problems(seed: int, split: Split, steps: int = 2) -> Iterator[NumberProblem]:
    """An endless stream of distinct problems of one split; the same seed gives the same stream."""
    rng = random.Random(f"numbers/{split}/{seed}")
    seen: set[str] = set()
    while True:
        problem = draw_problem(rng, steps)
        if problem.split == split and problem.question not in seen:
            seen.add(problem.question)
            yield problem
