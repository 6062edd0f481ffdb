"""Steps as a program that an agent would write, and ways in which an agent gets such a program wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from retcon.train.demos.solutions import Step

Reasoning = Literal["comments", "before", "none"]
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


def words_and_code(steps: Sequence[Step], reasoning: Reasoning) -> tuple[str, str]:
    """What is said before the program, and the program, which prints the last step's value."""
    lines: list[str] = []
    for step in steps:
        if step.words and reasoning == "comments":
            lines.append(f"# {step.words}")
        lines.append(step.code)
    said = "\n".join(step.words for step in steps if step.words) if reasoning == "before" else ""
    return said, "\n".join([*lines, f"print({steps[-1].name})"])


def _parenthesis(code: str, _steps: Sequence[Step], _rng: random.Random) -> str:
    return code.removesuffix(")")


def _undefined(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    """A step is left out whose variable is used."""
    step = rng.choice([one for one in steps if any(one.name in other.uses for other in steps)] or [steps[-1]])
    return "\n".join(line for line in code.splitlines() if line != step.code)


def _too_early(code: str, steps: Sequence[Step], _rng: random.Random) -> str:
    """A variable is named that no step has."""
    return code.replace(f"print({steps[-1].name})", f"print(x{len(steps) + 1})")


def _misspelt(code: str, _steps: Sequence[Step], rng: random.Random) -> str:
    return code.replace("print(", rng.choice(("pint(", "prin(", "printf(", "show(")))


def _not_imported(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    name = steps[-1].name
    return code.replace(f"print({name})", f"print({rng.choice(('math.floor', 'math.ceil', 'np.round'))}({name}))")


def _money(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    return _on_a_number(code, steps, rng, lambda number: f"${number}")


def _percent(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    """`20% * x1` is Python, though another sum: it is the sandbox that tells whether it fails."""
    return _on_a_number(code, steps, rng, lambda number: f"{number}%")


def _quoted(code: str, steps: Sequence[Step], rng: random.Random) -> str:
    return _on_a_number(code, steps, rng, lambda number: f'"{number}"')


def _on_a_number(code: str, steps: Sequence[Step], rng: random.Random, change: Callable[[str], str]) -> str:
    places = [(step, match) for step in steps for match in _NUMBER.finditer(step.expression)]
    if not places:
        return code
    step, match = rng.choice(places)
    changed = step.expression[: match.start()] + change(match[0]) + step.expression[match.end() :]
    return code.replace(step.code, f"{step.name} = {changed}")


_BROKEN = (_parenthesis, _undefined, _too_early, _misspelt, _not_imported, _money, _percent, _quoted)


def broken(code: str, steps: Sequence[Step], rng: random.Random) -> Iterator[str]:
    """Variants of a program, each likely to fail, all different, in an order drawn from `rng`; whether one does is for
    the sandbox to say. There are two at least, and two at least do fail (a name that is not there)."""
    for change in rng.sample(_BROKEN, len(_BROKEN)):
        changed = change(code, steps, rng)
        if changed != code:
            yield changed
