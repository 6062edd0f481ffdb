#!/usr/bin/env python
"""The pool's scheduling policy against others in simulated time (docs/models/scale.md).

    python benchmarks/scheduling.py [--parts mathematics,sizes,…] [--seeds 1] [--json FILE]

Parts: every load at 64 replicas, by its name without a comma, those recorded at 16; `spread`, two loads at 8 replicas
over three seeds, two steps each; `sizes`, two loads at 8 to 1,024; `faults`, replicas that die and stragglers;
`prefill`, at twice the speed; and `decisions`, what a decision costs. A part takes some minutes of one core; what FILE
has of other parts stays in it. Everything is seeded: the same commit gives the same figures, except microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from parts.fleet.costs import PUBLISHED, Costs, misfit
from parts.fleet.loads import LOADS, Job
from parts.fleet.rivals import Aimd, LeastRequests, PrefixAffinity, Reserving, Static, Sticky
from parts.fleet.world import Fault, Outcome, Policy, World, bounds
from parts.results import add_json, save

from retcon.engine.pool.policy import Policy as Pool
from retcon.engine.pool.policy import PoolSettings

MEASURES = ("src/retcon/engine/pool", "benchmarks/parts/fleet")
FIRST_SEED = 2
"""Of the loads: a rule of the policy was changed after its figures on seed 1 had been seen."""
Make = Callable[[Sequence[Job], int, Costs], Policy]


def longest(jobs: Sequence[Job]) -> int:
    return max(job.limit for job in jobs)


def pooled(_: Sequence[Job], count: int, costs: Costs) -> Policy:
    return Pool([costs.capacity] * count, max_requests=costs.rows, settings=PoolSettings(prefill=1 / costs.prefill))


def immediate(kind: Callable[[int], Policy]) -> Make:
    return lambda _, count, __: kind(count)


POLICIES: dict[str, Make] = {
    "pool": pooled,
    "static": lambda jobs, count, _: Static(count, len(jobs)),
    "least requests": immediate(LeastRequests),
    "sticky": immediate(Sticky),
    "prefix affinity": immediate(PrefixAffinity),
    "reserving": lambda jobs, count, costs: Reserving(count, costs.capacity, longest(jobs)),
    "AIMD": lambda jobs, count, costs: Aimd(count, costs.capacity, longest(jobs)),
}


@dataclass(frozen=True, slots=True)
class Setting:
    load: str
    replicas: int
    costs: Costs = PUBLISHED
    faulty: bool = False


def steps(setting: Setting, policy: str, seed: int, count: int = 1) -> Iterator[tuple[Outcome, float, int]]:
    """Yield (outcome, least possible makespan, tokens to sample) of consecutive steps."""
    made: Policy | None = None
    now = 0.0
    for step in range(count):
        jobs = LOADS[setting.load](setting.replicas, 1000 * seed + step)
        made = made or POLICIES[policy](jobs, setting.replicas, setting.costs)
        slow, faults = trouble(setting.replicas) if setting.faulty else ({}, ())
        outcome = World(jobs, setting.costs, setting.replicas, made, slow=slow, faults=faults, began=now).run()
        now += outcome.makespan + 60.0  # the update
        wanted = sum(turn.sampled for job in jobs for turn in job.turns)
        if outcome.decoded != wanted + outcome.lost:
            raise SystemExit(
                f"{setting} {policy}: {outcome.decoded} tokens decoded, {wanted} wanted, {outcome.lost} lost"
            )
        yield outcome, bounds(jobs, setting.costs, setting.replicas).best, wanted


def trouble(replicas: int) -> tuple[dict[int, float], list[Fault]]:
    """One replica in 32 takes twice as long for everything; one in 32 dies, and is back after two minutes."""
    some = range(0, replicas, 32)
    return {n + 5: 2.0 for n in some}, [Fault(n + 9, 60.0 + n, 120.0) for n in some]


def measured(setting: Setting, policy: str, seeds: int, count: int = 1) -> dict[str, Any]:
    """The figures of one policy, [median, least, most] over seeds: of the steps after the first, where there are any,
    and the first's makespan."""
    runs = [list(steps(setting, policy, seed, count)) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
    rows: dict[str, list[float]] = {}
    for run in runs:
        later = [figures_of(*one) for one in run[1:] or run]
        for name in later[0]:
            rows.setdefault(name, []).append(statistics.fmean(one[name] for one in later))
    found: dict[str, Any] = {name: [statistics.median(all_), min(all_), max(all_)] for name, all_ in rows.items()}
    found["first"] = statistics.median(run[0][0].makespan for run in runs)
    print(f"{setting.load}, {setting.replicas}: {policy:16} {found['makespan'][0]:8.1f} s "
          f"(at least {found['bound'][0]:.1f}, first {found['first']:.1f}), idle {found['idle'][0]:.1f} %, "
          f"again {found['again'][0]:.2f}, lost {found['lost'][0]:.1f} %, {found['overflows'][0]:.0f} overflows, "
          f"{found['evicted'][0]:.0f} evicted", flush=True)  # fmt: skip
    return found


def figures_of(outcome: Outcome, best: float, wanted: int) -> dict[str, float]:
    """Of one step. again: tokens per sampled one; idle, lost: per cent."""
    return {
        "makespan": outcome.makespan, "bound": best, "idle": 100 * outcome.idle, "again": outcome.again / wanted,
        "lost": 100 * outcome.lost / wanted, "overflows": outcome.preempted,
        "evicted": outcome.evicted + outcome.restarted,
    }  # fmt: skip


HEAD = ["", "makespan, s", "of least requests'", "first step, s", "idle, %", "computed again, tokens per sampled one",
        "decoded again, %", "overflows", "given up"]  # fmt: skip


def table(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Format figures for `make figures`, the best makespan in bold."""
    base = figures["least requests"]["makespan"][0] if "least requests" in figures else None
    best = min(one["makespan"][0] for one in figures.values())
    lines = []
    for name, one in figures.items():
        seconds, low, high = one["makespan"]
        shown = f"**{seconds:,.0f}**" if seconds == best else f"{seconds:,.0f}"
        lines.append([
            name, shown + (f" ({low:,.0f}…{high:,.0f})" if low < high else ""),
            f"{seconds / base:.2f}" if base else "", f"{one['first']:,.0f}", f"{one['idle'][0]:.1f}",
            f"{one['again'][0]:.2f}", f"{one['lost'][0]:.1f}", f"{one['overflows'][0]:,.0f}",
            f"{one['evicted'][0]:,.0f}",
        ])  # fmt: skip
    bound = next(iter(figures.values()))["bound"][0]
    lines.append(["no policy below", f"{bound:,.0f}", f"{bound / base:.2f}" if base else "", *[""] * 6])
    return {"head": HEAD, "rows": lines}


def compared(setting: Setting, seeds: int, names: Sequence[str] = tuple(POLICIES), count: int = 1) -> dict[str, Any]:
    figures = {name: measured(setting, name, seeds, count) for name in names}
    return {"figures": figures, "table": table(figures)}


def sizes(seeds: int) -> dict[str, Any]:
    """Makespans of three policies, from 8 replicas to 1,024; the first step alone."""
    names, lines = ("least requests", "AIMD", "pool"), []
    for load, counts in (("software, 32 a replica", (8, 32, 128)), ("software, 8 a replica", (8, 64, 256, 1024))):
        for count in counts:
            figures = {name: measured(Setting(load, count), name, seeds, 1) for name in names}
            seconds = [figures[name]["makespan"][0] for name in names]
            lines.append([
                load, f"{count:,}", *(f"{s:,.0f}" for s in seconds), f"{seconds[0] / seconds[2]:.2f}",
                f"{seconds[1] / seconds[2]:.2f}", f"{figures['pool']['bound'][0]:,.0f}",
                f"{figures['pool']['overflows'][0]:.0f}",
            ])  # fmt: skip
    head = ["load", "replicas", *(f"{name}, s" for name in names), "least requests ÷ pool", "AIMD ÷ pool",
            "no policy below, s", "pool's overflows"]  # fmt: skip
    return {"table": {"head": head, "rows": lines}}


def time_decisions() -> dict[str, Any]:
    """Return the policy's CPU microseconds per event, its actions included."""
    figures = {}
    for load, count in (("software, 8 a replica", 64), ("software, 8 a replica", 1024)):
        jobs = LOADS[load](count, 1)
        outcome = World(jobs, PUBLISHED, count, POLICIES["pool"](jobs, count, PUBLISHED), timed=True).run()
        figures[f"{count}"] = 1e6 * outcome.policy_seconds / outcome.decisions
        print(f"{load}, {count} replicas: {figures[f'{count}']:.0f} µs for each of {outcome.decisions:,} events")
    return figures


SOME = ("least requests", "sticky", "AIMD", "pool")
TWO = ("mathematics", "software, 32 a replica")
PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{
        name.replace(",", ""): partial(compared, Setting(name, 16 if name.startswith("recorded") else 64))
        for name in LOADS
    },
    "spread": lambda _: {name: compared(Setting(name, 8), 3, count=2) for name in TWO},
    "sizes": sizes,
    "faults": lambda seeds: {name: compared(Setting(name, 32, faulty=True), seeds, SOME) for name in TWO},
    "prefill": lambda seeds: compared(
        Setting("software, 32 a replica", 32, replace(PUBLISHED, prefill=PUBLISHED.prefill / 2)), seeds, SOME
    ),
    "decisions": lambda _: time_decisions(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas between them")
    parser.add_argument("--seeds", type=int, default=1)
    add_json(parser)
    options = parser.parse_args()
    wanted = options.parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"error: --parts {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    print(f"forwards are within {misfit():.1%} of what was published")
    for part in wanted:
        found = PARTS[part](options.seeds)
        if options.json:
            kept = json.loads(options.json.read_text(encoding="utf-8"))["figures"] if options.json.exists() else {}
            save(options.json, {**kept, part: found}, command="benchmarks/scheduling.py", measures=MEASURES)


if __name__ == "__main__":
    main()
