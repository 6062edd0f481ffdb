"""What a step's rollouts say about the policy: numbers per trajectory, raw and purified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import get_args

from retcon.core.sample import token_count
from retcon.core.tries import first_tries
from retcon.core.types import TRAINED, Decision, Trajectory, Turn
from retcon.purify.splice import UNALIGNED
from retcon.rollout.loop import NO_CHECKPOINT
from retcon.train.objective.shaping import rewards_of

DECISIONS: tuple[Decision, ...] = get_args(Decision)


def rollout_metrics(
    groups: Sequence[Sequence[Trajectory]], shaped: Callable[[Sequence[Trajectory]], Sequence[float]] = rewards_of
) -> dict[str, float | None]:
    """Metrics of all rollouts of a step, those that selection and masks take out among them; (prompts, G'). shaped:
    the rewards of a graded group that are compared, as they are then.

    reward: mean. reward_std: within a group, mean over groups of two or more; same_reward: share of those whose
    `shaped` rewards are all equal. pass_rate: share with a positive reward. prompt_tokens, response_tokens, turns:
    of a rollout; its response begins with its first turn, and observations are part of it. cut_off: share that ended
    for want of tokens or turns. raw_failures, failures: failed calls a trajectory, as they happened and after
    purification. raw_calls: likewise; call_failure_rate: raw_failures in raw_calls. first_tries, first_try_failures: in
    all (see `retcon.core.tries`); first_try_failure_rate: the second in the first. spliced_share: of the tokens in the
    loss mask. sampled_tokens: in all, lookaheads among them; total_tokens: of the histories, prompts among them.
    repairs by decision: in all; unaligned: those that are deep, or described without words, only because a call did not
    begin on a token boundary; no_checkpoint: turns in which a tool could not keep its state, so that a failure was or
    would have been left unrepaired. rollouts, infrastructure: made, and lost to faults; purified: those in which a
    purifier was armed.
    Means and shares are over graded rollouts alone. None: of no group of two or more, no call, no first try.
    """
    made = [t for group in groups for t in group]
    graded = [t for t in made if t.reward is not None]
    rewards = [t.reward for t in graded if t.reward is not None]
    several = [known for group in groups if len(known := [t for t in group if t.reward is not None]) > 1]
    lengths = [(token_count(t.prompt), token_count(t.segments)) for t in graded]
    tries = [first_tries(t) for t in graded]
    tried, failed = sum(t.made for t in tries), sum(t.failed for t in tries)
    called = sum(t.raw_calls for t in graded)
    repairs = [turn.repair for t in made for turn in t.own_turns if turn.repair is not None]
    decisions = [repair.decision for repair in repairs]
    return {
        "reward": _mean(rewards),
        "reward_std": fmean(stdev(rewards_of(group)) for group in several) if several else None,
        "same_reward": fmean(len(set(shaped(group))) <= 1 for group in several) if several else None,
        "pass_rate": _mean([r > 0 for r in rewards]),
        "prompt_tokens": _mean([prompt for prompt, _ in lengths]),
        "response_tokens": _mean([whole - prompt for prompt, whole in lengths]),
        "total_tokens": sum(token_count(t.segments) for t in made),
        "turns": _mean([len(t.turns) for t in graded]),
        "cut_off": _mean([t.stop in ("length", "turns") for t in graded]),
        "raw_failures": _mean([t.raw_failures for t in graded]),
        "call_failure_rate": sum(t.raw_failures for t in graded) / called if called else None,
        "failures": _mean([t.failures for t in graded]),
        "raw_calls": _mean([t.raw_calls for t in graded]),
        "first_tries": tried,
        "first_try_failures": failed,
        "first_try_failure_rate": failed / tried if tried else None,
        "spliced_share": _spliced_share(graded),
        "sampled_tokens": sum(t.sampled_tokens for t in made),
        "rollouts": len(made),
        "infrastructure": len(made) - len(graded),
        "purified": sum(t.provenance.purified for t in made),
        **{decision: decisions.count(decision) for decision in DECISIONS},
        "unaligned": sum(repair.reason == UNALIGNED for repair in repairs),
        "no_checkpoint": sum(_unkept(turn) for t in made for turn in t.own_turns),
    }


def _unkept(turn: Turn) -> bool:
    refused = turn.repair is not None and turn.repair.reason.startswith(NO_CHECKPOINT)
    return refused or any(observation.no_checkpoint for observation in turn.observations)


def _spliced_share(trajectories: Sequence[Trajectory]) -> float:
    learnt = [s for t in trajectories for s in t.segments if s.kind in TRAINED]
    spliced = token_count(s for s in learnt if s.kind == "spliced")
    return spliced / max(1, token_count(learnt))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
