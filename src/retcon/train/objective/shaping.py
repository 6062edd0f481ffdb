"""Shaped rewards, and masks of rollouts and tokens. Pure; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from retcon.config.schema import RLSection
from retcon.core.types import TRAINED, Status, Trajectory, Turn, history_ids, token_count
from retcon.train.objective.branpo import with_contrasts

if TYPE_CHECKING:
    from retcon.rollout.context import RolloutLimits


def overlong_punishment(length: int, limit: int, buffer: int, penalty: float) -> float:
    """Return DAPO's soft overlong punishment (arXiv 2503.14476, equation 13): 0 up to limit - buffer tokens, then
    linear to -penalty at the limit."""
    return -penalty * min(max(length - (limit - buffer), 0) / buffer, 1.0)


def overlong_metrics(
    groups: Sequence[Sequence[Trajectory]], shaped: Sequence[Sequence[float]]
) -> dict[str, float | None]:
    """Return metrics of overlong rollouts. overlong_rollouts: those that were punished. overlong_penalty: their mean
    loss of reward; None without one. shaped: the groups' rewards after punishments."""
    pairs = zip(groups, shaped, strict=True)
    lost = [r - s for group, rewards in pairs for r, s in zip(rewards_of(group), rewards, strict=True) if r != s]
    return {"overlong_rollouts": len(lost), "overlong_penalty": fmean(lost) if lost else None}


def rewards_of(group: Sequence[Trajectory]) -> list[float]:
    """Return the rewards of a group. Raises ValueError for an ungraded rollout."""
    rewards = []
    for trajectory in group:
        if trajectory.reward is None:
            raise ValueError(f"trajectory {trajectory.id} has no reward: drop infrastructure faults first")
        rewards.append(trajectory.reward)
    return rewards


def shaped_rewards(group: Sequence[Trajectory], config: RLSection, limits: RolloutLimits) -> list[float]:
    """Return a group's rewards with overlong punishment, by lengths of whole trajectories. Raises ValueError as
    `rewards_of`."""
    rewards, buffer = rewards_of(group), config.overlong_buffer
    if not buffer:
        return rewards
    return [
        reward + overlong_punishment(len(history_ids(one)), most.max_tokens, buffer, config.overlong_penalty)
        for reward, one in zip(rewards, group, strict=True)
        for most in [limits.after(token_count(one.prompt))]
    ]


def advantages_of(
    groups: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[float]], config: RLSection
) -> list[list[float]]:
    """Return the advantages of a step's groups, by their shaped rewards.

    With config.shared_advantage = siblings, the rollouts of a group that began at one point, the prompt or a branch
    point, are a group of their own (Fission-GRPO, arXiv 2601.15625).
    """
    if config.shared_advantage != "siblings":
        return config.advantages_of_step(rewards)
    parts: list[tuple[int, list[int]]] = []
    for number, group in enumerate(groups):
        points: dict[tuple[str, int] | None, list[int]] = {}
        for index, one in enumerate(group):
            point = (one.branch.parent, one.branch.turns) if one.branch else None
            points.setdefault(point, []).append(index)
        parts += [(number, indices) for indices in points.values()]
    found = config.advantages_of_step([[rewards[number][index] for index in indices] for number, indices in parts])
    advantages = [[0.0] * len(group) for group in groups]
    for (number, indices), part in zip(parts, found, strict=True):
        for index, advantage in zip(indices, part, strict=True):
            advantages[number][index] = advantage
    return advantages


def comparable(group: Sequence[Trajectory], config: RLSection) -> list[Trajectory]:
    """Keep the rollouts of a group whose rewards are compared.

    Those that an infrastructure fault ended have none; masked ones stay with config.masked_in_baseline alone, and
    continuations for BranPO where they ended otherwise. Fewer than two give an empty list: nothing can be compared.
    """
    left = [t for t in group if t.stop != "infrastructure" and (config.masked_in_baseline or not is_masked(t, config))]
    if config.step_advantage == "branpo":
        left = with_contrasts(left)
    return left if len(left) > 1 else []


def is_masked(trajectory: Trajectory, config: RLSection) -> bool:
    """Return whether config.truncated or void_turns masks the whole rollout."""
    cut_off = config.truncated == "mask" and trajectory.stop == "length"
    return cut_off or (config.void_turns == "mask" and has_void_turn(trajectory))


def has_void_turn(trajectory: Trajectory) -> bool:
    """Return whether a rollout has a void turn: SimpleTIR's turn without tool call or answer (arXiv 2509.02479, section
    3.3). Here that is one that was cut off, one whose calls all are malformed and reach no tool, or a last one without
    an answer."""
    return any(is_void(turn, trajectory.answer) for turn in trajectory.turns)


def is_void(turn: Turn, answer: str | None) -> bool:
    """Return whether a turn is void (see `has_void_turn`). answer: of its trajectory."""
    if turn.stop != "call":
        return turn.stop == "length" or answer is None
    malformed = {one.call_id for one in turn.observations if one.status == "malformed"}
    return all(call.malformed or call.id in malformed for call in turn.calls)


def in_failed_turns(trajectory: Trajectory) -> list[bool]:
    """Mark the model's tokens in turns with a failed call, (T,)."""
    found = [False] * token_count(trajectory.prompt)
    for turn in trajectory.turns:
        failed = turn.failures > 0
        for segment in turn.segments:
            found += [failed and segment.kind in TRAINED] * len(segment.ids or ())
    return found


ECHOED: Mapping[str, tuple[Status, ...]] = {"all": ("ok", "error"), "failed": ("error",)}


def output_mask(trajectory: Trajectory, outputs: str) -> tuple[int, ...]:
    """Mark the ids of tool outputs to predict, (T,).

    ECHO (arXiv 2605.24517): L = L_GRPO(θ; A) + λ L_env(θ; O′), where A are the tokens of actions, O′ those of the
    environment's answers, and L_env is their cross-entropy, normalised by length; here over all outputs of a minibatch.
    O′ is without warnings of the harness: malformed calls, limits, and faults of the machine are left out.

    Args:
        outputs: "all", or "failed" for those of failed calls alone.
    """
    found = [0] * token_count(trajectory.prompt)
    for turn in trajectory.turns:
        answers = iter(turn.observations)
        for segment in turn.segments:
            answer = next(answers, None) if segment.kind == "observation" else None
            learnt = answer is not None and answer.status in ECHOED[outputs]
            found += [int(learnt)] * len(segment.ids or ())
    return tuple(found)
