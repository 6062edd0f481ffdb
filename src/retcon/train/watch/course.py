"""What the steps so far say about those to come: when a run is over before its steps are, and whether it goes wrong."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from retcon.config.learning import RLSection
from retcon.core.errors import DriftWarning, IdleWarning
from retcon.train.watch.drift import WINDOW, drift

Metrics = Mapping[str, float | None]

IDLE = 0.95
"""Share of groups whose rewards are all equal, from which on a run hardly learns."""


class Course:
    """A run's metrics, step by step, from its first session on: so that what follows from them is the same whether or
    not the run was interrupted."""

    def __init__(self, section: RLSection, lines: Sequence[Metrics]) -> None:
        self._section = section
        self._lines = list(lines)
        self._sampled = sum(line.get("sampled_tokens") or 0.0 for line in lines)
        self._since = 0

    def data_since(self, step: int) -> None:
        """After this step other tasks came, on whose first tries nothing before says anything."""
        self._since = step

    def add(self, line: Metrics) -> None:
        """A step is over."""
        self._lines.append(line)
        self._sampled += line.get("sampled_tokens") or 0.0

    @property
    def over(self) -> bool:
        """Whether what the recipe allows the whole run is spent: `rl.max_sampled_tokens`, `rl.max_cpu_seconds`."""
        return self._spent(self._sampled, (self._lines[-1].get("cpu_s") or 0.0) if self._lines else 0.0)

    def ends_with(self, made: Metrics, cpu_s: float) -> bool:
        """Whether the run will be over after the step that these rollouts are of, which has cost so much until now."""
        return self._spent(self._sampled + (made.get("sampled_tokens") or 0.0), cpu_s)

    def _spent(self, sampled: float, cpu_s: float) -> bool:
        tokens, seconds = self._section.max_sampled_tokens, self._section.max_cpu_seconds
        return bool((tokens and sampled >= tokens) or (seconds and cpu_s >= seconds))

    def tell_idling(self, made: Metrics) -> None:
        """Tells by an IdleWarning, when it begins, that in the last WINDOW steps, these rollouts' among them, hardly a
        group had rollouts of different rewards: the others have no advantage."""
        lines = [*self._lines[self._since :], made]
        if not self._idles(lines) or self._idles(lines[:-1]):
            return
        idle, passed = (_mean(lines[-WINDOW:], name) for name in ("same_reward", "pass_rate"))
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
        """Metrics of the step that these rollouts are of. first_try_drift: how far the first-try failure rate of the
        last WINDOW steps lies above the lowest before, on the same tasks (see `drift`), None with too few steps.
        first_try_alarm: 1 where that is by `rl.drift_alarm` or more and beyond chance, of which a DriftWarning tells
        when it begins."""
        found = drift([*self._lines[self._since :], made])
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
        if len(last) < WINDOW or _mean(last, "same_reward") < IDLE:
            return False
        across = any(map(any, self._section.advantages_of_step([[1.0, 1.0], [-1.0, -1.0]])))
        return not (across and 0 < _mean(last, "pass_rate") < 1)  # groups may be compared with each other


def _mean(lines: Sequence[Metrics], name: str) -> float:
    """Of the steps that have it; 0 where none has, as with groups of one."""
    known = [value for line in lines if (value := line.get(name)) is not None]
    return sum(known) / len(known) if known else 0.0
