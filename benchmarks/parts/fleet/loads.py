"""What is to be rolled out in one training step: trajectories of many turns, drawn at random or recorded.

The loads and where their figures are from stand in docs/models/scale.md; they were fixed before any result.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

WORKLOADS = Path(__file__).parents[2] / "workloads"


class Turn(NamedTuple):
    """Sampled tokens, then the tool's seconds and the tokens shown."""

    sampled: int
    shown: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """A trajectory. prompt: tokens, the group's. limit: tokens that it may reach; engines and policies see that, and
    never how long it will get."""

    group: int
    prompt: int
    turns: tuple[Turn, ...]
    limit: int

    @property
    def final(self) -> int:
        return self.prompt + sum(turn.sampled + turn.shown for turn in self.turns)


Load = Callable[[int, int], list[Job]]
"""(replicas, seed) to the trajectories of a step, groups one after another."""


def heavy(draw: random.Random, median: float, sigma: float, most: float) -> float:
    """Log-normal, cut at `most`."""
    return min(most, draw.lognormvariate(math.log(median), sigma))


def mathematics(replicas: int, seed: int) -> list[Job]:
    """rStar2-Agent's first stage: 256 rollouts a GPU in groups of 32, 8K tokens, about 2.75 calls each."""
    draw, jobs = random.Random(f"math {seed}"), []
    for group in range(replicas * 256 // 32):
        prompt = round(heavy(draw, 500, 0.3, 1500))
        hard = draw.gauss(0, 0.7 * math.sqrt(0.5))
        for _ in range(32):
            length = min(8192, round(3340 * math.exp(hard + draw.gauss(0, 0.7 * math.sqrt(0.5)))))
            calls = min(9, geometric(draw, 2.75))
            turns = split(draw, max(16, length), calls, seconds=(0.18, 1.0, 4.0))
            jobs.append(Job(group, prompt, turns, prompt + 8192))
    return jobs


def software(per_replica: int) -> Load:
    """Software engineering as DeepSWE's: groups of 8, 32K tokens, about 40 turns of which what is shown is the most."""

    def load(replicas: int, seed: int) -> list[Job]:
        draw, jobs = random.Random(f"software {seed}"), []
        for group in range(replicas * per_replica // 8):
            prompt = round(heavy(draw, 3000, 0.4, 8000))
            hard = math.exp(draw.gauss(0, 0.35))
            for _ in range(8):
                turns, used = [], prompt
                for _ in range(max(4, min(100, round(32 * hard * draw.lognormvariate(0, 0.35))))):
                    sampled = min(max(8, round(heavy(draw, 180, 0.8, 4096))), 32_768 - used)
                    shown = min(round(heavy(draw, 250, 1.2, 8000)), 32_768 - used - sampled)
                    turns.append(Turn(sampled, shown, heavy(draw, 0.8, 1.5, 90.0)))
                    used += sampled + shown
                    if used >= 32_768:
                        break
                turns[-1] = turns[-1]._replace(shown=0, seconds=0.0)
                jobs.append(Job(group, prompt, tuple(turns), 32_768))
        return jobs

    return load


def recorded(name: str, per_replica: int, longer: int) -> Load:
    """Draw whole groups from `benchmarks/workloads`, with `longer` times the tokens."""

    def load(replicas: int, seed: int) -> list[Job]:
        draw = random.Random(f"{name} {seed}")
        groups: dict[int, list[dict[str, Any]]] = {}
        for line in (WORKLOADS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[1:]:
            one = json.loads(line)
            groups.setdefault(one["group"], []).append(one)
        limit = max(job_of(one, 0, longer, 0).final for group in groups.values() for one in group)
        jobs: list[Job] = []
        group = 0
        while len(jobs) < replicas * per_replica:
            jobs += [job_of(one, group, longer, limit) for one in draw.choice(list(groups.values()))]
            group += 1
        return jobs

    return load


def job_of(one: dict[str, Any], group: int, longer: int, limit: int) -> Job:
    """A line of a workload as a trajectory."""
    turns = tuple(Turn(int(s) * longer, int(o) * longer, float(t)) for s, o, t in one["turns"])
    return Job(group, int(one["prompt"]) * longer, turns, limit)


def geometric(draw: random.Random, mean: float) -> int:
    """Draw a geometric number of failures with this mean."""
    return int(math.log(1 - draw.random()) / math.log(mean / (1 + mean)))


def split(draw: random.Random, tokens: int, calls: int, seconds: tuple[float, float, float]) -> tuple[Turn, ...]:
    """Split tokens over `calls` + 1 unequal turns. A tenth of each call's turn is shown after it."""
    weights = [draw.expovariate(1) + 0.1 for _ in range(calls + 1)]
    turns = []
    for number, weight in enumerate(weights):
        part = max(2, round(tokens * weight / sum(weights)))
        shown = part // 10 if number < calls else 0
        turns.append(Turn(part - shown, shown, heavy(draw, *seconds) if number < calls else 0.0))
    return tuple(turns)


LOADS: dict[str, Load] = {
    "mathematics": mathematics,
    "software, 8 a replica": software(8),
    "software, 32 a replica": software(32),
    "recorded agents": recorded("agents", 256, 3),
    "recorded quickstart": recorded("quickstart", 256, 1),
}
