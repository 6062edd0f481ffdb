"""Metrics of a step: what its rollouts say about the policy, where they branched, and what is learnt from splices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import get_args

from retcon.config.learning import RLSection
from retcon.core.sample import token_count
from retcon.core.tries import first_tries
from retcon.core.types import TRAINED, Decision, Sample, Trajectory, Turn
from retcon.purify.splice import UNALIGNED
from retcon.rollout.loop import NO_CHECKPOINT
from retcon.train.objective.shaping import is_void, rewards_of

DECISIONS: tuple[Decision, ...] = get_args(Decision)
SPLICED = ("spliced_tokens", "spliced_positive", "spliced_negative", "spliced_weight")


def rollout_metrics(
    groups: Sequence[Sequence[Trajectory]], shaped: Callable[[Sequence[Trajectory]], Sequence[float]] = rewards_of
) -> dict[str, float | None]:
    """Metrics of all rollouts of a step, those that selection and masks take out among them; (prompts, G'). shaped:
    the rewards of a graded group that are compared, as they are then.

    reward: mean. reward_std: within a group, mean over groups of two or more; same_reward: share of those whose
    `shaped` rewards are all equal. pass_rate: share with a positive reward. prompt_tokens, response_tokens, turns:
    of a rollout; its response begins with its first turn, and observations are part of it. void_turns: in all (see
    `is_void`). cut_off: share that ended for want of tokens or turns. raw_failures, failures: failed calls a
    trajectory, as they happened and after purification. raw_calls: likewise; call_failure_rate: raw_failures in
    raw_calls. first_tries, first_try_failures: in all (see `retcon.core.tries`); first_try_failure_rate: the second
    in the first. spliced_share: of the tokens in the loss mask. sampled_tokens: in all, lookaheads among them;
    total_tokens: of the histories, prompts among them. repairs by decision: in all; unaligned: those that are deep,
    or described without words, only because a call did not begin on a token boundary; no_checkpoint: turns in which
    a tool could not keep its state, so that a failure was or would have been left unrepaired. rollouts,
    infrastructure: made, and lost to faults; purified: those in which a purifier was armed.
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
        "void_turns": sum(is_void(turn, t.answer) for t in graded for turn in t.own_turns),
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


def branch_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float | None]:
    """Metrics of the rollouts of a step whose strategy lets them branch; (prompts, G').

    branches: rollouts that left another one. branch_points: where they did, several perhaps at one. branch_entropy,
    branch_entropy_rise: of the turns for which rollouts branched, nats a token, and above that of their first turns,
    means; branch_surprisal, branch_surprisal_rise: the same where the engine tells no entropies (see
    `retcon.rollout.strategy.Uncertainty`). entropy_first, entropy_after_tools: of all first turns, and of all turns
    that followed a tool's answer, as they were sampled first. branch_shared_tokens, branch_shared_calls: tokens and
    executed calls that branches share with those that they left, in all: none was computed or sampled, or executed,
    again. None is what nothing is known of.
    """
    made = [t for group in groups for t in group]
    branched = [t for t in made if t.branch is not None]
    points = {(t.branch.parent, t.branch.turns): t.branch for t in branched if t.branch is not None}
    by = {m: [p for p in points.values() if p.measure == m] for m in ("entropy", "surprisal")}
    shared = [(t, t.turns[: t.branch.turns]) for t in branched if t.branch is not None]
    return {
        "branches": len(branched),
        "branch_points": len(points),
        **{f"branch_{m}": _mean_known(p.uncertainty for p in found) for m, found in by.items()},
        **{f"branch_{m}_rise": _mean_known(p.rise for p in found) for m, found in by.items()},
        "entropy_first": _mean_known(_entropies(t.turns[:1] for t in made if t.branch is None)),
        "entropy_after_tools": _mean_known(_entropies(t.own_turns if t.branch else t.turns[1:] for t in made)),
        "branch_shared_tokens": sum(token_count(t.prompt) + token_count(s for u in turns for s in u.segments)
                                    for t, turns in shared),
        "branch_shared_calls": sum(len(attempt.observations) for _, turns in shared for turn in turns
                                   for attempt in turn.raw()),
    }  # fmt: skip


def _entropies(rollouts: Iterable[Sequence[Turn]]) -> list[float]:
    return [e for turns in rollouts for turn in turns if (e := turn.raw()[0].entropy) is not None]


def _mean_known(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def splice_metrics(samples: Sequence[Sample], config: RLSection) -> dict[str, float | None]:
    """spliced_tokens: in the loss mask. spliced_positive, spliced_negative: shares of them by the sign of their
    advantage: the first are what `rl.imitate_spliced` imitates, the second what `rl.mask_negative_spliced` leaves out.
    spliced_weight: the mean of their weights, 1 where they have none; with `rl.splice_weight = "accept"` the share that
    is accepted. None where there are none. splice_weights_cut, with `rl.splice_weight`: tokens whose weight is
    `rl.splice_weight_cap`, or 0 by "accept".
    """
    advantages: list[float] = []
    weights: list[float] = []
    for sample in samples:
        count = len(sample.ids)
        rows = (sample.mask, sample.spliced, sample.advantages or (0.0,) * count, sample.weights or (None,) * count)
        for learnt, spliced, advantage, weight in zip(*rows, strict=True):
            if learnt and spliced:
                advantages.append(advantage)
                weights.append(1.0 if weight is None else weight)
    count, limit = len(advantages), config.splice_weight_cap if config.splice_weight == "truncated" else 0.0
    cut = {} if config.splice_weight == "none" else {"splice_weights_cut": weights.count(limit)}
    if not count:
        return {**dict.fromkeys(SPLICED), "spliced_tokens": 0, **cut}
    up, down = sum(a > 0 for a in advantages), sum(a < 0 for a in advantages)
    return {**dict(zip(SPLICED, (count, up / count, down / count, sum(weights) / count), strict=True)), **cut}
