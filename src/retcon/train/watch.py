"""Health of a run: budgets, drift, idling, divergence, step metrics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import get_args

import torch

from retcon.config.schema import RLSection
from retcon.core.errors import DriftWarning, IdleWarning, TrainingDiverged
from retcon.core.types import TRAINED, Decision, Sample, Trajectory, Turn, count_first_tries, token_count
from retcon.purify.splice import UNALIGNED
from retcon.rollout.loop import NO_CHECKPOINT
from retcon.train.kernels.forward import Part
from retcon.train.objective.shaping import is_void, rewards_of

# Alarm for first tries that fail more often than before, which purification hides from the reward: with it a failed
# first try costs a rollout nothing, so the reward can rise while first tries get worse.

WINDOW = 10
"""Steps whose first tries are counted together."""
SIGMAS = 5.0
"""Standard errors by which a rise must exceed chance. So many, as every step tests anew, against the best of all
windows before: with 4, one run of 200 steps in twenty raises a false alarm, with 5 one in 200."""
TRIES, FAILURES = "first_tries", "first_try_failures"


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift of first-try failures. best: the lowest rate of WINDOW steps in a row before the last WINDOW. now: the rate
    of the last. sigmas: their difference in standard errors."""

    best: float
    now: float
    sigmas: float

    @property
    def rise(self) -> float:
        return self.now - self.best

    def alarming(self, bound: float) -> bool:
        """Return whether the rate has risen by `bound` or more, beyond chance; 0 is no bound."""
        return bool(bound) and self.rise >= bound and self.sigmas >= SIGMAS


def measure_drift(steps: Sequence[Mapping[str, float | None]]) -> Drift | None:
    """Measure the drift of first tries; None before there are two windows.

    Rates of two windows that share no step are compared as two proportions: their difference over
    √(p (1 - p) (1/n + 1/m)), p that of both together.
    """
    tries_until, failures_until = (
        [0.0, *accumulate(step.get(name) or 0.0 for step in steps)] for name in (TRIES, FAILURES)
    )
    sums = [
        (tries_until[end] - tries_until[end - WINDOW], failures_until[end] - failures_until[end - WINDOW])
        for end in range(WINDOW, len(steps) + 1)
    ]
    before = [(failures / tries, tries, failures) for tries, failures in sums[:-WINDOW] if tries]
    if not before or not sums[-1][0]:
        return None
    best, tries, failures = min(before)
    now = sums[-1][1] / sums[-1][0]
    both = (failures + sums[-1][1]) / (tries + sums[-1][0])
    error = math.sqrt(both * (1 - both) * (1 / tries + 1 / sums[-1][0]))
    return Drift(best, now, (now - best) / error if error else 0.0)


Metrics = Mapping[str, float | None]

IDLE = 0.95
"""Share of groups with equal rewards from which on a run hardly learns."""


class RunHealth:
    """Budgets, idling and drift of a run, from all of its metrics. Earlier sessions count, so that interruptions change
    nothing."""

    def __init__(self, section: RLSection, lines: Sequence[Metrics]) -> None:
        self._section = section
        self._lines = list(lines)
        self._sampled = sum(line.get("sampled_tokens") or 0.0 for line in lines)
        self._since = 0

    def data_since(self, step: int) -> None:
        """Start drift and idling anew after this step, which changed the tasks."""
        self._since = step

    def add(self, line: Metrics) -> None:
        """Add a finished step."""
        self._lines.append(line)
        self._sampled += line.get("sampled_tokens") or 0.0

    @property
    def over(self) -> bool:
        """Whether a budget of the run is spent: `rl.max_sampled_tokens` or `rl.max_cpu_seconds`."""
        return self._spent(self._sampled, (self._lines[-1].get("cpu_s") or 0.0) if self._lines else 0.0)

    def ends_with(self, made: Metrics, cpu_s: float) -> bool:
        """Return whether these rollouts' step spends a budget. cpu_s: the run's cost so far."""
        return self._spent(self._sampled + (made.get("sampled_tokens") or 0.0), cpu_s)

    def _spent(self, sampled: float, cpu_s: float) -> bool:
        tokens, seconds = self._section.max_sampled_tokens, self._section.max_cpu_seconds
        return bool((tokens and sampled >= tokens) or (seconds and cpu_s >= seconds))

    def tell_idling(self, made: Metrics) -> None:
        """Warn once (IdleWarning) if hardly a group has different rewards. It counts the last WINDOW steps, with these
        rollouts; other groups have no advantage."""
        lines = [*self._lines[self._since :], made]
        if not self._idles(lines) or self._idles(lines[:-1]):
            return
        idle, passed = (_mean_over(lines[-WINDOW:], name) for name in ("same_reward", "pass_rate"))
        first = " A cold start may have to come first: docs/data/demonstrations.md." if passed < 0.5 else ""
        warnings.warn(
            f"step {len(self._lines) + 1}: in {idle:.0%} of the groups of the last {WINDOW} steps all rollouts had one "
            f"reward ({passed:.1%} of them pass), and such groups have no advantage to learn from. `retcon difficulty` "
            "finds the tasks that the model solves now and then, and select.pass_rates trains on those "
            f"(docs/training/selection.md).{first}",
            IdleWarning,
            stacklevel=2,
        )

    def drift_after(self, made: Metrics) -> Metrics:
        """Return drift metrics of these rollouts' step. first_try_drift: first-try failure rate of the last WINDOW
        steps above the lowest before, on the same tasks (see `measure_drift`), None with too few steps.
        first_try_alarm: 1 if that is at least `rl.drift_alarm` and beyond chance; a DriftWarning reports its begin."""
        found = measure_drift([*self._lines[self._since :], made])
        if found is None:
            return {"first_try_drift": None, "first_try_alarm": 0}
        alarm = found.alarming(self._section.drift_alarm)
        if alarm and not (self._lines and self._lines[-1].get("first_try_alarm")):
            warnings.warn(
                f"step {len(self._lines) + 1}: {found.now:.1%} of first tries failed in the last {WINDOW} steps, after "
                f"{found.best:.1%} at best: repairs may hide it from the reward. See docs/training/schedule.md, "
                '"When first tries get worse"',
                DriftWarning,
                stacklevel=2,
            )
        return {"first_try_drift": found.rise, "first_try_alarm": int(alarm)}

    def _idles(self, lines: Sequence[Metrics]) -> bool:
        last = lines[-WINDOW:]
        if len(last) < WINDOW or _mean_over(last, "same_reward") < IDLE:
            return False
        across = any(map(any, self._section.advantages_of_step([[1.0, 1.0], [-1.0, -1.0]])))
        return not (across and 0 < _mean_over(last, "pass_rate") < 1)  # groups may be compared with each other


def _mean_over(lines: Sequence[Metrics], name: str) -> float:
    """Return a metric's mean over the steps that have it; 0 if none has, as with groups of one."""
    known = [value for line in lines if (value := line.get(name)) is not None]
    return sum(known) / len(known) if known else 0.0


NAMED = 5
"""Most samples that a message names."""


def check_finite(loss: float, part: Part, batch: str) -> None:
    """Check that a micro-batch's loss is finite, before weights move. Raises TrainingDiverged, which names the batch
    and the samples with log-probs or advantages that are not finite."""
    if math.isfinite(loss):
        return
    logprobs = torch.isfinite(part.logprobs).all(-1).tolist()
    advantages = [all(map(math.isfinite, sample.advantages or ())) for sample in part.samples]
    known = zip(part.samples, logprobs, advantages, strict=True)
    broken = [sample for sample, found, given in known if not (found and given)]
    raise TrainingDiverged(f"{batch}: the loss is {loss}, by {_named(broken or part.samples)}")


def _named(samples: Sequence[Sample]) -> str:
    names = [sample.source or f"a sample of {len(sample.ids)} tokens" for sample in samples[:NAMED]]
    more = len(samples) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


DECISIONS: tuple[Decision, ...] = get_args(Decision)
SPLICED = ("spliced_tokens", "spliced_positive", "spliced_negative", "spliced_weight")


def rollout_metrics(
    groups: Sequence[Sequence[Trajectory]], shaped: Callable[[Sequence[Trajectory]], Sequence[float]] = rewards_of
) -> dict[str, float | None]:
    """Return metrics of a step's rollouts, (prompts, G'), unselected ones included. shaped: returns the compared
    rewards of a graded group.

    reward: mean. reward_std: within a group, mean over groups of two or more; same_reward: share of those whose
    `shaped` rewards are all equal. pass_rate: share with a positive reward. prompt_tokens, response_tokens, turns:
    of a rollout; its response begins with its first turn, and observations are part of it. void_turns: in all (see
    `is_void`). cut_off: share that ended for lack of tokens or turns. raw_failures, failures: failed calls per
    trajectory, as they happened and after purification. raw_calls: likewise; call_failure_rate: raw_failures in
    raw_calls. first_tries, first_try_failures: in all (see `retcon.core.types`); first_try_failure_rate: the second
    in the first. spliced_share: of the tokens in the loss mask. sampled_tokens: in all, lookaheads and
    children included; total_tokens: of the histories, prompts and children included. repairs by decision: in
    all; unaligned: those that are deep, or described without words, only because a call did not begin on a token
    boundary; no_checkpoint: turns in which a tool could not keep its state, so that a failure was or would have been
    left unrepaired. rollouts, infrastructure: made, and lost to faults; purified: those in which a purifier was armed.
    Means and shares are over graded rollouts alone. None without a group of two or more, a call, a first try.
    """
    made = [t for group in groups for t in group]
    graded = [t for t in made if t.reward is not None]
    rewards = [t.reward for t in graded if t.reward is not None]
    several = [known for group in groups if len(known := [t for t in group if t.reward is not None]) > 1]
    lengths = [(token_count(t.prompt), token_count(t.segments)) for t in graded]
    tries = [count_first_tries(t) for t in graded]
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
        "total_tokens": sum(token_count(node.segments) for t in made for node in t.tree),
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
        "sampled_tokens": sum(node.sampled_tokens for t in made for node in t.tree),
        "rollouts": len(made),
        "infrastructure": len(made) - len(graded),
        "purified": sum(t.provenance.purified for t in made),
        **{decision: decisions.count(decision) for decision in DECISIONS},
        "unaligned": sum(repair.reason == UNALIGNED for repair in repairs),
        "no_checkpoint": sum(_lost_state(turn) for t in made for turn in t.own_turns),
    }


def _lost_state(turn: Turn) -> bool:
    refused = turn.repair is not None and turn.repair.reason.startswith(NO_CHECKPOINT)
    return refused or any(observation.no_checkpoint for observation in turn.observations)


def _spliced_share(trajectories: Sequence[Trajectory]) -> float:
    learnt = [s for t in trajectories for s in t.segments if s.kind in TRAINED]
    spliced = token_count(s for s in learnt if s.kind == "spliced")
    return spliced / max(1, token_count(learnt))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def branch_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float | None]:
    """Return metrics of a step's branching rollouts, (prompts, G').

    branches: rollouts that left another one. branch_points: their places, several perhaps at one. branch_entropy,
    branch_entropy_rise: of the turns for which rollouts branched, nats a token, and above their first turns, means;
    branch_surprisal, branch_surprisal_rise: likewise for engines without entropies (see
    `retcon.rollout.strategy.Uncertainty`). entropy_first, entropy_after_tools: of all first turns, and of all turns
    that followed a tool's answer, as first sampled. branch_shared_tokens, branch_shared_calls: tokens and executed
    calls that branches share with the rollouts that they left, in all, and that were not computed or executed again.
    None: unknown.
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
    """Return metrics of spliced tokens. spliced_tokens: in the loss mask. spliced_positive, spliced_negative: shares by
    the sign of their advantage: `rl.imitate_spliced` imitates the first, `rl.mask_negative_spliced` masks the second.
    spliced_weight: the mean of their weights, by default 1; with `rl.splice_weight = "accept"` the accepted share. None
    without spliced tokens. splice_weights_cut, with `rl.splice_weight`: tokens whose weight is `rl.splice_weight_cap`,
    or 0 by "accept".
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
