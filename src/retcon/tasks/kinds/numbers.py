"""Task family of number problems, with a cold start's weak teacher."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar

from pydantic import Field

from retcon.config.schema import TaskSection
from retcon.config.section import Probability
from retcon.core.types import Trajectory
from retcon.tasks.graders.text import find_boxed
from retcon.tasks.registry import RIGHT, WRONG, CountTokens
from retcon.tasks.types import Lesson, Split, Task

# The number problems: a chain of steps, each easy with Python and hard without. By default there are two.
#
#     let x be the gcd of 4821 and 1233. find 17 to the power x mod 997.
#
# Nine operations. Every step but the last gives a name to its value (kept in 2..999), which the next one uses. A
# problem is drawn from a seeded stream; its text decides by hash which split it belongs to, so that training and
# evaluation cannot overlap whatever the seeds.

X_MIN, X_MAX = 2, 999
LETTERS = "xyzuvw"  # of the steps' values, in order
MAX_STEPS = len(LETTERS) + 1
EVALUATION_SHARE = 8  # one problem in eight belongs to the evaluation split


@dataclass(frozen=True, slots=True)
class Operation:
    """One of nine operations: its words, the draw of its arguments, and its value.

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
        """Return the step with `value`, right or wrong, as the result before."""
        if self.x_at is None:
            return self
        return replace(self, args=(*self.args[: self.x_at], value, *self.args[self.x_at + 1 :]))


@dataclass(frozen=True, slots=True)
class NumberProblem:
    """A problem of two steps or more; each value is an argument of the next step."""

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
    """Draw one problem from the stream `rng`, of either split."""
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
    """Yield distinct problems of one split without end; equal seeds give equal streams."""
    rng = random.Random(f"numbers/{split}/{seed}")
    seen: set[str] = set()
    while True:
        problem = draw_problem(rng, steps)
        if problem.split == split and problem.question not in seen:
            seen.add(problem.question)
            yield problem


# What the weak teacher writes for each operation: programs that are right, that fail, and that are wrong.
#
# Every program is Python with `{}` for the arguments. `right` runs and prints the value; `failing` raises or does not
# compile, each in a way that real models show (missing import, wrong name, absent function, wrong type, syntax);
# `wrong` runs and prints something else for most arguments.


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


# The weak teacher of the number problems: what it writes next, given what it has seen. Its code often fails.
#
# It knows each problem's steps but writes poor Python: a first try at a step fails nearly always, a try after an error
# in six cases of ten, and one program in twenty that runs is of a wrong method. Its demonstrations
# (`retcon.train.demos.rolling`) hold real failures, real repairs and real wrong answers. How the rates were chosen is
# in `docs/log.md`.


@dataclass(frozen=True, slots=True)
class Rates:
    """Error rates of the teacher: shares of failing first tries at a step and of failing tries right after an error,
    and of running programs with a wrong method. Other rates are for measuring, not for better agents.
    """

    first_failure: float = 0.995
    retry_failure: float = 0.6
    wrong_method: float = 0.05


WEAK = Rates()


@dataclass(frozen=True, slots=True)
class Seen:
    """The teacher's view of a call: its output, and whether that is the requested number."""

    worked: bool
    output: str


def write_code(step: Step, rng: random.Random, *, after_error: bool, rates: Rates = WEAK) -> str:
    """Write one try at a step: right, failing or by a wrong method."""
    programs = PROGRAMS[step.operation.name]
    if rng.random() < (rates.retry_failure if after_error else rates.first_failure):
        source = rng.choice(programs.failing)
    elif rng.random() < rates.wrong_method:
        source = rng.choice(programs.wrong)
    else:
        source = rng.choice(programs.right)
    return source.format(*step.args)


def reply(
    problem: NumberProblem, seen: Sequence[Seen], rng: random.Random, rates: Rates = WEAK
) -> tuple[str, str | None]:
    """Write the teacher's next turn after these calls: its words, and its code or None for the answer."""
    values = [s.output for s in seen if s.worked]
    after_error = bool(seen) and not seen[-1].worked
    done = len(values)
    if done >= len(problem.steps):
        return f"answer: \\boxed{{{values[len(problem.steps) - 1]}}}", None
    step, lead = problem.steps[done], f"find {LETTERS[0]}."
    if done:
        step, lead = step.after(int(values[-1])), f"now {LETTERS[done - 1]} is {values[-1]}."
    lead = f"again: {lead}" if after_error else lead
    return lead, write_code(step, rng, after_error=after_error, rates=rates)


def next_turn(
    problem: NumberProblem, printed: Sequence[str], rng: random.Random, *, rates: Rates = WEAK
) -> tuple[str, str | None]:
    """Write the next turn, as a `Lesson`; an output other than a number counts as a failure."""
    return reply(problem, [Seen(_is_number(text), text) for text in printed], rng, rates)


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


@dataclass(frozen=True, slots=True)
class NumberTasks:
    """Task set of number problems, graded by boxed integer. Implements `TaskSet`, `Taught`. rates: of the teacher."""

    name: str = "numbers"
    system: str | None = None
    rates: Rates = WEAK
    steps: int = 2

    def train(self, seed: int) -> Iterator[Task]:
        return (p.task() for p in problems(seed, "train", self.steps))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [p.task() for p in islice(problems(seed, "evaluation", self.steps), count)]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop == "infrastructure":
            return trajectory
        answer = find_boxed(trajectory.turns[-1].text) if trajectory.turns and trajectory.stop == "answer" else None
        reason = "no boxed answer" if answer is None else "equal" if answer == task.answer else "not equal"
        return replace(trajectory, answer=answer, reward=RIGHT if answer == task.answer else WRONG, reason=reason)

    def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
        drawn = problems(seed, "train", self.steps)
        return ((p.task(), partial(next_turn, p, rates=self.rates)) for p in drawn)


class Numbers(TaskSection):
    """Section [task] of kind `numbers`."""

    own_lengths: ClassVar[bool] = True
    steps: int = Field(2, ge=2, le=MAX_STEPS, description="of a problem: each uses the value of the one before")
    first_failure: Probability = Field(WEAK.first_failure, description="share of the teacher's first tries at a step "
                                       "that fail")  # fmt: skip
    retry_failure: Probability = Field(WEAK.retry_failure, description="share of its tries after an error that fail")
    wrong_method: Probability = Field(WEAK.wrong_method, description="share of its programs that run, but are of a "
                                      "wrong method")  # fmt: skip

    def build(self, count_tokens: CountTokens | None = None) -> NumberTasks:
        return NumberTasks(rates=Rates(self.first_failure, self.retry_failure, self.wrong_method), steps=self.steps)
