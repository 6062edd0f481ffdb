"""The text that the base model saw: synthetic documents of words, numbers, Python's surface and copying.

Nothing in it is a conversation, a tool call, a tool's output, an error message or a number problem: tool habits are
learnt later. Every document is short (at most about 120 ids) and comes from a seeded stream, so `make base` makes the
same text anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

WORDS = tuple(
    """
    a an the of and to in is was for on with as by at from that this it be are or not have has had but all they one you
    we he she his her their its will would there what when which who how if then than so no yes out up down over under
    into between after before first second third next last new old long short high low big small good bad same other
    more most some any each every only also now here where why because about through during again once time day year
    week month hour minute man woman child people house home work school water food book page line word name number
    value result answer question problem list table row column file code text letter set group part side end start begin
    stop find let get give take make use try see look know think want need show tell ask call run read write add sum
    count total mean product difference power root square cube double half mod modulo base digit digits divisor divisors
    multiple multiples prime primes factor gcd lcm range limit step rest remainder greatest least common smallest
    largest even odd positive negative zero two three four five six seven eight nine ten hundred thousand red blue green
    white black tree river stone road bird dog cat horse fish sun moon star sky sea ship train city town king queen
    friend apple pear bread milk salt sugar box bag cup door window wall table chair garden failed wrong right correct
    different way check compute calculate solve using program script function module import method
    """.split()
)

NAMES = tuple(
    """
    Tom Mia Ada Ben Eva Max Ida Leo Zoe Jan
    """.split()
)

THINGS = tuple(
    """
    apples pears books stones cups birds boxes pages coins cards
    """.split()
)

VARIABLES = tuple(
    """
    a b c d e f g h i j k m n p q r s t u v w x y z total count value result items data size width height left right
    index
    """.split()
)

MODULES = tuple(
    """
    math random itertools functools collections string statistics fractions sympy
    """.split()
)

MEMBERS = tuple(
    """
    gcd lcm hcf sqrt floor ceil factorial pow log comb isqrt prod primes divisors digits choice randint shuffle chain
    product reduce mean median prime isprime lowest powmod base square multiples count
    """.split()
)

BUILTINS = tuple(
    """
    abs all any bin bool chr dict divmod enumerate float hex int len list map max min next oct ord pow print range
    reversed round set sorted str sum tuple type zip
    """.split()
)

VOCABULARY_ONLY = tuple(
    """
    python user assistant system tool object attribute defined type types expected got unsupported operand argument
    arguments integer string invalid syntax expression never closed missing required positional perhaps you forgot
    NameError TypeError SyntaxError AttributeError ValueError ZeroDivisionError IndexError KeyError TimeoutError while
    boxed squares return elif else yield lambda True False None MemoryError ImportError ModuleNotFoundError
    RecursionError OverflowError callable iterable must again
    """.split()
)
"""Words that the corpus never says: the names of roles and of errors."""

MARKS = tuple(
    r"""
    ``` ' " \ ( [ { = + - * / % < > . , : # | ! ?
    """.split()
)


OPERATORS = ("+", "-", "*", "//", "%", "**", "==", "<", ">", "<=", ">=", "!=")


def _number(rng: random.Random) -> str:
    digits = rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5))
    return str(rng.randint(10 ** (digits - 1), 10**digits - 1))


def _atom(rng: random.Random) -> str:
    return rng.choice(VARIABLES) if rng.random() < 0.4 else _number(rng)


def _token(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return _number(rng)
    return rng.choice(WORDS) if kind < 0.85 else rng.choice(MEMBERS + BUILTINS)


def _echo(rng: random.Random) -> str:
    """A random sequence, repeated in whole or part: copying as such."""
    items = [_token(rng) for _ in range(rng.randint(3, 12))]
    mark = rng.choice((" = ", "\n", ". ", ": ", " | ", " and "))
    separator = rng.choice((" ", ", ", "; ", " "))
    again = items[rng.randrange(len(items) - 1) :] if rng.random() < 0.5 else items
    return mark.join(separator.join(part) for part in (items, again, *([again] if rng.random() < 0.3 else [])))


def _facts(rng: random.Random) -> str:
    """Who has how many; asked about some of them."""
    count = rng.randint(2, 4)
    people = rng.sample(NAMES, count)
    facts = [(p, _number(rng), rng.choice(THINGS)) for p in people]
    sentence = " ".join(f"{p} has {n} {t}." for p, n, t in facts)
    asked = " ".join(f"{p} has {n}." for p, n, _ in rng.sample(facts, rng.randint(1, count)))
    return f"{sentence} {asked}"


def _expression(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth > 1 or kind < 0.25:
        return _atom(rng)
    if kind < 0.5:
        return f"{_expression(rng, depth + 1)} {rng.choice(OPERATORS)} {_expression(rng, depth + 1)}"
    arguments = ", ".join(_expression(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    if kind < 0.75:
        return f"{rng.choice(BUILTINS)}({arguments})"
    if kind < 0.85:
        return f"{rng.choice(MODULES)}.{rng.choice(MEMBERS)}({arguments})"
    name = rng.choice(VARIABLES)
    body = f"{_expression(rng, depth + 1)} for {name} in range({_atom(rng)}, {_atom(rng)} + 1)"
    if rng.random() < 0.4:
        body += f" if {name} % {_atom(rng)} == {_atom(rng)}"
    return rng.choice((f"sum({body})", f"[{body}]", f"len([{body}])", f"all({body})"))


def _statement(rng: random.Random, indent: str = "") -> str:
    kind = rng.random()
    if kind < 0.35:
        return f"{indent}{rng.choice(VARIABLES)} = {_expression(rng)}"
    if kind < 0.55:
        return f"{indent}print({_expression(rng)})"
    if kind < 0.65:
        return f"{indent}{rng.choice(VARIABLES)} {rng.choice(('+=', '-=', '*=', '//=', '%='))} {_expression(rng)}"
    if kind < 0.75:
        module = rng.choice(MODULES)
        return (
            f"{indent}import {module}" if rng.random() < 0.5 else f"{indent}from {module} import {rng.choice(MEMBERS)}"
        )
    if indent:
        return f"{indent}{rng.choice(VARIABLES)}, {rng.choice(VARIABLES)} = {_atom(rng)}, {_atom(rng)}"
    head = rng.choice(
        (
            f"for {rng.choice(VARIABLES)} in range({_atom(rng)}, {_atom(rng)}):",
            f"while {rng.choice(VARIABLES)} {rng.choice(OPERATORS[6:])} {_atom(rng)}:",
            f"while {rng.choice(VARIABLES)}:",
            f"if {_expression(rng, 1)}:",
            f"def {rng.choice(MEMBERS)}({rng.choice(VARIABLES)}, {rng.choice(VARIABLES)}):",
        )
    )
    return "\n".join([head, *(_statement(rng, "    ") for _ in range(rng.randint(1, 2)))])


def _program(rng: random.Random) -> str:
    """Python's surface: well-formed statements that mean nothing."""
    return "\n".join(_statement(rng) for _ in range(rng.randint(1, 4)))


def _sentence(rng: random.Random) -> str:
    words = [_number(rng) if rng.random() < 0.25 else rng.choice(WORDS) for _ in range(rng.randint(3, 9))]
    return " ".join(words) + rng.choice((".", ".", "?", ":"))


def _commented(rng: random.Random) -> str:
    """A sentence with numbers, then Python that uses those numbers in some of their order."""
    numbers = [_number(rng) for _ in range(rng.randint(1, 4))]
    word = rng.choice(WORDS)
    words = [rng.choice(WORDS) for _ in range(rng.randint(0, 3))]
    sentence = " ".join([*words, word, rng.choice(("of ", "from ", "in ", "with ", "")) + numbers[0]])
    for number in numbers[1:]:
        sentence += rng.choice((" and ", " to ", " mod ", " in base ", ", ")) + number
    use = numbers if rng.random() < 0.7 else rng.sample(numbers, len(numbers))
    name = word if rng.random() < 0.5 else rng.choice(MEMBERS + BUILTINS)
    kind = rng.random()
    if kind < 0.4:
        call = rng.choice((name, f"{rng.choice(MODULES)}.{name}"))
        code = f"{call}({', '.join(use)})"
        code = f"print({code})" if rng.random() < 0.5 else code
    elif kind < 0.7:
        code = "\n".join(f"{v} = {n}" for v, n in zip(rng.sample(VARIABLES, len(use)), use, strict=True))
    elif kind < 0.85:
        code = f" {rng.choice(OPERATORS)} ".join(use)
        code = f"print({code})" if rng.random() < 0.5 else code
    else:
        v = rng.choice(VARIABLES)
        body = f"{v} {rng.choice(OPERATORS)} {use[0]} for {v} in range({use[-1]}, {use[len(use) // 2]} + 1)"
        code = f"print(sum({body}))"
    lead = rng.choice(("# ", "", "let it be ", "find "))
    return f"{lead}{sentence}{rng.choice(('', '.'))}\n{code}"


def _let(rng: random.Random) -> str:
    """Names given to numbers, then used: a name stands for its number."""
    names = rng.sample(VARIABLES, rng.randint(1, 3))
    values = {name: _number(rng) for name in names}
    sentence = " ".join(
        f"{rng.choice(('let', 'put', 'with'))} {n} {rng.choice(('be', '=', 'is'))} {v}." for n, v in values.items()
    )
    asked = [rng.choice(names) for _ in range(rng.randint(1, 4))]
    form = rng.choice(("{n} is {v}.", "{n} = {v}", "{n}: {v}", "use {n} = {v}."))
    return sentence + "\n" + "\n".join(form.format(n=n, v=values[n]) for n in asked)


def _shell(rng: random.Random) -> str:
    """An interpreter that shows a name's value: what was assigned comes back."""
    lines = []
    for _ in range(rng.randint(1, 3)):
        name, number = rng.choice(VARIABLES), _number(rng)
        lines += [f">>> {name} = {number}", f">>> {rng.choice((name, f'print({name})'))}", number]
    return "\n".join(lines)


def _boxed(rng: random.Random) -> str:
    """A number, some words, and the number again in LaTeX's box."""
    number = _number(rng)
    return f"{rng.choice(WORDS)}: {number}\n{_sentence(rng) if rng.random() < 0.5 else ''}\\boxed{{{number}}}"


def _prose(rng: random.Random) -> str:
    return " ".join(_sentence(rng) for _ in range(rng.randint(1, 4)))


DOCUMENTS: tuple[tuple[float, Callable[[random.Random], str]], ...] = (
    (0.24, _echo),
    (0.10, _facts),
    (0.16, _program),
    (0.24, _commented),
    (0.10, _let),
    (0.06, _shell),
    (0.04, _boxed),
    (0.06, _prose),
)


def documents(seed: int) -> Iterator[str]:
    """An endless stream of documents; the same seed gives the same stream."""
    rng = random.Random(f"corpus/{seed}")
    weights = [w for w, _ in DOCUMENTS]
    makers = [m for _, m in DOCUMENTS]
    while True:
        yield rng.choices(makers, weights)[0](rng)


def vocabulary() -> Iterator[str]:
    """What a tokenizer should know whole: numbers of up to three digits, words and marks, with and without a space."""
    for width in (1, 2, 3):
        yield from (f"{number:0{width}d}" for number in range(10**width))
    yield from (" ", "\n", "\n    ", "\n        ", "\n            ")
    words = dict.fromkeys(
        (*WORDS, *NAMES, *THINGS, *VARIABLES, *MODULES, *MEMBERS, *BUILTINS, *VOCABULARY_ONLY, *MARKS)
    )
    for word in words:
        yield from (word, f" {word}")
