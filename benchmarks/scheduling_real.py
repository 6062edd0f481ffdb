#!/usr/bin/env python
"""The simulator of `scheduling.py` against real engines: recorded rollouts over four processes. docs/models/scale.md.

    python benchmarks/scheduling_real.py [--engines 4] [--rounds 5] [--rollouts 16] [--worth 4] [--json FILE]

Each engine is a `LocalEngine` of the packaged model `base`, with one thread, in a process of its own; the pool's
`Dispatcher` sends it calls as a policy decides. Lengths are those recorded, forced.

**Time** is counted, not measured: the engines compute every token, and say of each forward how many rows it decoded,
how many tokens these attended to, and how many it fed; it then lasts as long as `Costs` says of Qwen3-14B on an H100,
times `SLOWER`, by a clock that stands still while an engine computes. Figures therefore do not depend on what else the
machine does. What is compared is batching, memory, preemption and what policies make of them, and not the formula of a
forward's time.

**Capacity.** An engine's slots come in classes of length, and hold less than its budget. Policies go by `FILLED` of it.
The simulator has the whole budget, and the engine's own slots in it (`parts/fleet/slotted.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import selectors
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from parts.fleet.costs import PUBLISHED, Costs
from parts.fleet.loads import Job, recorded
from parts.fleet.slotted import SlottedReplica
from parts.fleet.world import World
from parts.results import add_json, save
from scheduling import POLICIES, longest

from retcon.engine.pool.engine import Dispatcher
from retcon.engine.types import SamplingParams
from retcon.models.locating import BASE

MEASURES = ("src/retcon/engine/pool", "src/retcon/engine/local", "benchmarks/parts/fleet")
NAMES = ("pool", "least requests", "static", "reserving")
VOCABULARY = range(3, 2000)
ROWS = 64
SLOWER = 3.0
FILLED = 0.6
"""Assumed: slots are .85 full on average, and an engine leaves a tenth of its budget to those that grow."""
LONGER = 2
"""Times as many tokens as were recorded: slots of short histories are few classes, and hold much that is not used."""


# --- in an engine's process ---


def serve(pipe: Connection, max_len: int, kv_mb: int, costs: Costs) -> None:
    import torch

    torch.set_num_threads(1)
    asyncio.run(Served(pipe, max_len, kv_mb, costs).run())


class Served:
    """A local engine, and what is asked of it through a pipe. A forward is over when the other end says so."""

    def __init__(self, pipe: Connection, max_len: int, kv_mb: int, costs: Costs) -> None:
        from retcon.engine.local.engine import LocalEngine
        from retcon.models.loading import load_model

        self.pipe, self.costs = pipe, costs
        model = load_model(BASE)
        positions = model.config.max_position_embeddings
        model.config.max_position_embeddings = max(max_len, positions)  # what it says is moot
        self.engine = LocalEngine(model, max_len=max_len, max_requests=ROWS, kv_memory_mb=kv_mb)
        self.scheduler = self.engine._scheduler
        self.compute, self.scheduler.step = self.scheduler.step, self.step  # type: ignore[method-assign]
        self.engine._gather = self.pause  # type: ignore[method-assign]
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.over = asyncio.Event()
        self.over.set()
        self.reset()

    def reset(self) -> None:
        self.before, self.forwards = replace(self.engine.stats), 0

    def step(self) -> None:
        """A forward, and how many seconds it counts for."""
        stats = self.engine.stats
        rows, fed = stats.rows, stats.prefilled
        context = sum(len(one.cached) for one in self.scheduler._decoding.values())
        self.compute()
        seconds = self.costs.steps(1, stats.rows - rows, context) + self.costs.prefill * (stats.prefilled - fed)
        self.forwards += 1
        self.over.clear()
        self.pipe.send((None, seconds))

    async def pause(self) -> None:
        """Between two forwards: until the last one is over, and what was asked meanwhile is taken in."""
        await self.over.wait()
        for _ in range(4):
            await asyncio.sleep(0)

    async def run(self) -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.pipe.fileno(), self.read, ended)
        memory = self.engine._memory
        self.pipe.send(memory.budget // memory.slot_bytes(1))
        await ended.wait()

    def read(self, ended: asyncio.Event) -> None:
        while not ended.is_set() and self.pipe.poll():
            try:
                kind, number, *about = self.pipe.recv()
            except EOFError:
                asyncio.get_running_loop().remove_reader(self.pipe.fileno())
                ended.set()
                return
            if kind == "over":
                self.over.set()
            elif kind == "cancel":
                if number in self.tasks:  # else its answer is under way
                    self.tasks[number].cancel()
            elif kind == "stats":
                stats = self.engine.stats.since(self.before)
                self.pipe.send((number, (stats.prefilled, stats.preempted, stats.evicted, self.forwards)))
                self.reset()
            else:
                work = self.generate(number, *about) if kind == "generate" else self.engine.release(number)
                self.tasks[number] = asyncio.create_task(work)
                self.tasks[number].add_done_callback(lambda _, number=number: self.tasks.pop(number))

    async def generate(self, number: int, id: str, ids: list[int], count: int) -> None:
        # entropies: nothing is drafted where they are wanted, so that a forward gives each request one token
        params = SamplingParams(max_tokens=count, seed=len(ids), entropies=count)
        made = await self.engine.generate(id, ids, params)
        self.engine.set_aside(id)  # like a server, it does not know who will ask again
        await self.over.wait()
        self.pipe.send((number, list(made.ids)))


# --- here ---


class SimulatedClockLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock stops during computing, then jumps ahead."""

    def __init__(self, engines: Sequence[Remote]) -> None:
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self.now, self.engines, self.wait = 0.0, engines, selector.select
        selector.select = self.select  # type: ignore[method-assign]

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> Any:
        if (events := self.wait(0)) or timeout == 0:
            return events
        if timeout is None or any(engine.waiting and not engine.stepping for engine in self.engines):
            return self.wait(None)
        self.now += timeout
        return []


class Remote:
    """An engine in a process of its own. waiting: what it was asked, by number. stepping: whether it has computed a
    forward whose time is not over."""

    def __init__(self, *about: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, *about), daemon=True)
        self.process.start()
        theirs.close()
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.numbers = itertools.count()
        self.stepping = False

    def connect(self) -> None:
        self.budget: int = self.pipe.recv()  # tokens of keys and values; it is ready
        asyncio.get_running_loop().add_reader(self.pipe.fileno(), self.read)

    def read(self) -> None:
        while self.pipe.poll():
            number, result = self.pipe.recv()
            if number is None:
                self.stepping = True
                asyncio.get_running_loop().call_later(result, self.step)
            elif (future := self.waiting.pop(number, None)) is not None:
                future.set_result(result)

    def step(self) -> None:
        self.stepping = False
        self.pipe.send(("over", None))

    async def ask(self, kind: str, *about: object) -> Any:
        number = next(self.numbers)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.pipe.send((kind, number, *about))
        try:
            return await future
        except asyncio.CancelledError:
            self.waiting.pop(number, None)
            self.pipe.send(("cancel", number))
            raise

    def release(self, id: str) -> None:
        self.pipe.send(("release", id))

    def stop(self) -> None:
        self.pipe.close()
        self.process.join()


@dataclass(slots=True)
class Run:
    """Of one policy. makespan: seconds. fed: tokens of histories computed. preempted: calls that gave way; evicted:
    requests at rest, or waiting, that lost keys and values; given_up: calls that the policy stopped. forwards: of the
    engine that had most."""

    makespan: float = 0.0
    fed: int = 0
    preempted: int = 0
    evicted: int = 0
    given_up: int = 0
    forwards: int = 0


async def replay(engines: Sequence[Remote], jobs: Sequence[Job], policy: Any) -> Run:
    """All jobs at once, to the last one's end."""
    draw = random.Random(0)
    prompts = {job.group: draw.choices(VOCABULARY, k=job.prompt) for job in jobs}
    shown = [[draw.choices(VOCABULARY, k=turn.shown) for turn in job.turns] for job in jobs]
    dispatcher = Dispatcher(policy, 300.0, forget=lambda id, replica: engines[replica].release(str(id)))

    async def roll_out(id: int, job: Job) -> None:
        ids, been = list(prompts[job.group]), set()
        for turn, after in zip(job.turns, shown[id], strict=True):

            async def work(replica: int, ids: list[int] = ids, count: int = turn.sampled) -> Any:
                been.add(replica)
                return await engines[replica].ask("generate", str(id), ids, count)

            ids += await dispatcher.run(id, len(ids), job.limit - len(ids), work, len, job.group)
            ids += after
            if turn is not job.turns[-1]:
                await asyncio.sleep(turn.seconds)
        for replica in been:
            engines[replica].release(str(id))
        dispatcher.release(id)

    clock = asyncio.get_running_loop().time
    began = clock()
    await asyncio.gather(*(roll_out(id, job) for id, job in enumerate(jobs)))
    makespan = clock() - began
    dispatcher.close()
    counts = [await engine.ask("stats") for engine in engines]
    fed, preempted, evicted, forwards = zip(*counts, strict=True)
    return Run(makespan, sum(fed), sum(preempted), sum(evicted), dispatcher.stats.evicted, max(forwards))


class Dispatched(World):
    """Lets the policy decide after each question, as `Dispatcher` does."""

    def _ask(self, id: int, now: float) -> None:
        super()._ask(id, now)
        self._act(now)


def simulated(jobs: Sequence[Job], costs: Costs, budget: int, engines: int, name: str) -> Run:
    """costs: what the policy goes by. budget: tokens of an engine's keys and values."""
    engine = partial(SlottedReplica, longest=longest(jobs) + 1)
    world = Dispatched(
        jobs, replace(costs, capacity=budget), engines, POLICIES[name](jobs, engines, costs), engine=engine
    )
    outcome = world.run()
    forwards = max(replica.counts.forwards for replica in world.replicas)
    return Run(outcome.makespan, outcome.prefilled, outcome.preempted, 0, outcome.evicted, forwards)


def least_fed(jobs: Sequence[Job]) -> int:
    """Tokens of histories that must be computed: each group's prompt and what is shown, once."""
    prompts = {job.group: job.prompt for job in jobs}
    return sum(prompts.values()) + sum(turn.shown for job in jobs for turn in job.turns[:-1])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    jobs = recorded(options.load, options.rollouts, LONGER)(options.engines, options.seed)
    dear = SLOWER * options.worth
    costs = replace(
        PUBLISHED, base=SLOWER * PUBLISHED.base, row=SLOWER * PUBLISHED.row, context=dear * PUBLISHED.context,
        prefill=dear * PUBLISHED.prefill, chunk=2048, rows=ROWS,
    )  # fmt: skip
    engines = [Remote(longest(jobs) + 1, options.kv_mb, costs) for _ in range(options.engines)]
    loop = SimulatedClockLoop(engines)
    try:
        return loop.run_until_complete(compare(options.rounds, jobs, costs, engines))
    finally:
        for engine in engines:
            engine.stop()
        loop.close()


async def compare(rounds: int, jobs: Sequence[Job], costs: Costs, engines: Sequence[Remote]) -> dict[str, Any]:
    for engine in engines:
        engine.connect()
    budget, count = engines[0].budget, len(engines)
    costs = replace(costs, capacity=int(FILLED * budget))
    lengths = [job.final for job in jobs]
    print(f"{budget} tokens an engine, {costs.capacity} for policies; {len(jobs)} rollouts of "
          f"{statistics.mean(lengths):.0f} tokens, {max(lengths)} at most")  # fmt: skip
    guessed = {name: simulated(jobs, costs, budget, count, name) for name in NAMES}
    for name, run in guessed.items():
        print(f"simulated, {name:14} {run}")
    real: dict[str, list[Run]] = {name: [] for name in NAMES}
    for number in range(rounds):
        for name in NAMES[number % 4 :] + NAMES[: number % 4]:
            run = await replay(engines, jobs, POLICIES[name](jobs, count, costs))
            real[name].append(run)
            print(f"round {number + 1}, {name:14} {run}", flush=True)
    return {"table": table(real, guessed, least_fed(jobs)), "budget": budget, "capacity": costs.capacity,
            "rollouts": len(jobs), "mean": statistics.mean(lengths), "longest": max(lengths),
            "real": {name: [vars_of(run) for run in runs] for name, runs in real.items()},
            "simulated": {name: vars_of(run) for name, run in guessed.items()}}  # fmt: skip


def vars_of(run: Run) -> dict[str, float]:
    return {name: round(getattr(run, name), 3) for name in Run.__slots__}


def table(real: dict[str, list[Run]], guessed: dict[str, Run], least: int) -> dict[str, Any]:
    def middle(name: str, of: str) -> float:
        return statistics.median(getattr(run, of) for run in real[name])

    head = ["", "makespan, s", "simulated", "of the pool's", "simulated", "ratio to simulated", "preempted",
            "simulated", "given up", "simulated", "computed again, tokens", "simulated"]  # fmt: skip
    lines = []
    for name in NAMES:
        seconds, guess = [run.makespan for run in real[name]], guessed[name]
        ratio = middle(name, "makespan") / middle("pool", "makespan")
        expected = guess.makespan / guessed["pool"].makespan
        lines.append([
            name, f"{middle(name, 'makespan'):.1f} ({min(seconds):.1f}…{max(seconds):.1f})", f"{guess.makespan:.1f}",
            f"{ratio:.2f}", f"{expected:.2f}", f"{ratio / expected:.2f}",
            f"{middle(name, 'preempted'):,.0f}", f"{guess.preempted:,}",
            f"{middle(name, 'given_up'):,.0f}", f"{guess.given_up:,}",
            f"{middle(name, 'fed') - least:,.0f}", f"{guess.fed - least:,}",
        ])  # fmt: skip
    for line in (head, *lines):
        print(" | ".join(line))
    return {"head": head, "rows": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", choices=("agents", "quickstart"), default="agents")
    parser.add_argument("--rollouts", type=int, default=16, help="of each engine")
    parser.add_argument("--kv-mb", type=int, default=8, help="MiB of keys and values of each engine")
    parser.add_argument("--worth", type=float, default=4.0, help="tokens that one stands for in prefill and attention")
    parser.add_argument("--seed", type=int, default=2)
    add_json(parser)
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        save(
            options.json,
            found,
            command=f"benchmarks/scheduling_real.py --rollouts {options.rollouts} --worth {options.worth:g}",
            measures=MEASURES,
        )


if __name__ == "__main__":
    main()
