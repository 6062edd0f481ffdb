"""Conversion of a rollout to verl's output: ids, mask, reward, figures."""

from __future__ import annotations

from typing import Any

from retcon.config.schema import Recipe
from retcon.core.types import REPLACED, to_sample, token_count
from retcon.plugins.verl.choosing import pack
from retcon.plugins.verl.shared import VerlRollout
from retcon.train.objective.shaping import shaped_rewards
from retcon.train.update import learnt


def to_output(rolled: VerlRollout, recipe: Recipe) -> dict[str, Any]:
    """Return the fields of an `AgentLoopOutput`, all of the purified history.

    response_mask: 1 on what the model wrote, spliced fixes among it, less what [rl] masks; 0 on observations.
    response_logprobs: where the servers were asked for them, which no repair goes with; else None, and verl computes
    them. reward_score: the grader's, with what [rl] takes off it for length.
    """
    trajectory, engine = rolled.trajectory, rolled.engine
    sample = to_sample(trajectory, scored=False)
    start = token_count(trajectory.prompt)
    known = all(p is not None for p, m in zip(sample.logprobs, sample.mask, strict=True) if m)
    logprobs = [0.0 if p is None else p for p in sample.logprobs[start:]]
    asked = any(p is not None for p in sample.logprobs)
    reward = trajectory.reward if rolled.validating else shaped_rewards([trajectory], recipe.rl, rolled.limits)[0]
    return {
        "prompt_ids": list(sample.ids[:start]),
        "response_ids": list(sample.ids[start:]),
        "response_mask": list(learnt(trajectory, sample, recipe.rl)[start:]),
        "response_logprobs": logprobs if asked and known else None,
        "reward_score": reward,
        "num_turns": 1 + sum(1 + bool(turn.calls) for turn in trajectory.turns),
        "metrics": {
            "generate_sequences": engine.seconds,
            "tool_calls": trajectory.raw_seconds,
            "num_preempted": -1 if engine.preempted is None else engine.preempted,
        },
        "extra_fields": {
            "turn_scores": [],
            "tool_rewards": [],
            "min_global_steps": min(engine.steps, default=None),
            "max_global_steps": max(engine.steps, default=None),
            "reward_extra_info": _metrics(rolled),
            "trajectory": pack(trajectory),
            "group_size": rolled.size,
        },
    }


def _metrics(rolled: VerlRollout) -> dict[str, float]:
    """Metrics of a rollout, which verl averages in validation. acc: whether it was right. failed_calls: before repair.
    sampled_tokens: abandoned attempts among them."""
    trajectory = rolled.trajectory
    repaired = [turn.repair.decision in REPLACED for turn in trajectory.turns if turn.repair]
    return {
        "acc": float((trajectory.reward or 0) > 0),
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.raw_calls),
        "failed_calls": float(trajectory.raw_failures),
        "repairs": float(sum(repaired)),
        "sampled_tokens": float(trajectory.sampled_tokens),
        "cut_off": float(trajectory.stop in ("length", "turns")),
    }
