"""RTMC (arXiv 2604.11037): a step's advantage, from the rollouts of its group that were in the same state."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import fmean
from warnings import catch_warnings, simplefilter

from retcon.core.types import TRAINED, ToolCall, Trajectory, Turn, token_count


def step_advantages(group: Sequence[Trajectory], advantages: Sequence[float]) -> list[list[float]]:
    """Return the advantage of every turn of a group, (G, turns).

    Q̂(s, a) is the mean R of the rollouts that took action a in state s, V̂(s) that of all that were in s, and
    Â(s, a) = Q̂(s, a) − V̂(s). R is the rollout's advantage in its group: rewards come at the end (γ = 1), and Â keeps
    the algorithm's scale. The paper compresses histories of a software repository into signatures; here a state is
    what the calls so far answered, an action the syntax trees of the turn's programs. In a state that no other rollout
    was in, Q̂ − V̂ is always 0; there the turn keeps R, which is ours.
    """
    returns: dict[Hashable, list[float]] = defaultdict(list)
    actions: dict[Hashable, list[float]] = defaultdict(list)
    for trajectory, advantage in zip(group, advantages, strict=True):
        for state, action in _steps(trajectory):
            returns[state].append(advantage)
            actions[state, action].append(advantage)
    return [
        [
            fmean(actions[state, action]) - fmean(returns[state]) if len(returns[state]) > 1 else advantage
            for state, action in _steps(trajectory)
        ]
        for trajectory, advantage in zip(group, advantages, strict=True)
    ]


def count_shared_states(group: Sequence[Trajectory]) -> int:
    """Count turns after a call whose state another rollout shares."""
    states = [state for trajectory in group for state, _ in _steps(trajectory)[1:]]
    return sum(states.count(state) > 1 for state in states)


def spread_over_tokens(trajectory: Trajectory, turns: Sequence[float]) -> tuple[float, ...]:
    """Return the advantage of each token, (T,): that of its turn on what the model wrote, else 0."""
    found = [0.0] * token_count(trajectory.prompt)
    for turn, advantage in zip(trajectory.turns, turns, strict=True):
        for segment in turn.segments:
            found += [advantage if segment.kind in TRAINED else 0.0] * len(segment.ids or ())
    return tuple(found)


def _steps(trajectory: Trajectory) -> list[tuple[tuple[Hashable, ...], Hashable]]:
    """The state before each turn, and the action that the turn is."""
    state: tuple[Hashable, ...] = ("".join(segment.text for segment in trajectory.prompt),)
    found = []
    for turn in trajectory.turns:
        found.append((state, _action(turn, trajectory.answer)))
        state = (*state, *((one.status, one.error_type or one.text.strip()) for one in turn.observations))
    return found


def _action(turn: Turn, answer: str | None) -> Hashable:
    return tuple((call.name, _program(call)) for call in turn.calls) or (turn.text if answer is None else answer)


def _program(call: ToolCall) -> str:
    try:
        with catch_warnings():
            simplefilter("ignore")  # of a program's own text, such as an invalid escape
            return ast.unparse(ast.parse(call.code))
    except (SyntaxError, ValueError, RecursionError):
        return call.code.strip()
