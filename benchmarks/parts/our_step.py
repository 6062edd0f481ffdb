#!/usr/bin/env python
"""One RL step of ours, for `step.py`: the local engine's rollouts, then `retcon.train.update`.

    python benchmarks/parts/our_step.py --precision bf16

The prompts and rewards are made up and there is no chat; from the engine to the optimiser it is what `retcon train`
does, with a recipe's settings. --precision: `fp32`; `bf16` (fp32 weights trained under autocast, rollouts by a bf16
copy). --calls: two turns of half the ids each, with a real call in the sandbox between them; its processes' CPU seconds
count as `tool`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from itertools import islice

import step_shape as shape
import torch
from transformers import Qwen3ForCausalLM

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.seeds import derive
from retcon.core.types import Segment, Trajectory, Turn
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.devices import Placement, computing_of
from retcon.models.placing import place_model
from retcon.runs.folder import cpu_seconds
from retcon.sandbox.pool import SandboxPool
from retcon.train.objective.shaping import rewards_of
from retcon.train.optim import adamw, torch_settings
from retcon.train.rollouts import EngineWeights
from retcon.train.update import to_samples, update

OBSERVED_IDS = 16
WIDTH = shape.PROMPT_IDS + shape.NEW_IDS


class Phases(dict[str, float]):
    """CPU seconds of this process, by phase."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self[name] = time.process_time() - began


class Ours:
    """What lasts from step to step: weights, optimiser, engine and, for `calls`, a sandbox."""

    def __init__(self, recipe: Recipe, where: Placement, pool: SandboxPool | None) -> None:
        torch.manual_seed(0)
        self.config, self.computing, self.pool = recipe.rl, computing_of(recipe.compute, where), pool
        self.model = Qwen3ForCausalLM(shape.model_config()).eval()
        self.optimizer = adamw(self.model, self.config.lr, weight_decay=self.config.weight_decay)
        self.weights = EngineWeights(self.model, getattr(torch, where.rollout_dtype))
        max_len = WIDTH if pool is None else WIDTH + OBSERVED_IDS
        self.engine = LocalEngine(self.weights.model, max_len=max_len, max_requests=shape.PROMPTS * shape.GROUP)
        self.prompts, self.rewards = shape.prompts(), shape.rewards()
        self.steps = 0

    async def step(self) -> dict[str, float]:
        """CPU seconds by phase."""
        self.steps += 1
        phases = Phases()
        outside = cpu_seconds() - time.process_time()
        with phases.phase("generate"):
            prompts = list(islice(self.prompts, shape.PROMPTS))
            made = await asyncio.gather(
                *(self._rollout(f"{p:02}/{i}", ids) for p, ids in enumerate(prompts) for i in range(shape.GROUP))
            )
        phases["tool"] = 0.0 if self.pool is None else cpu_seconds() - time.process_time() - outside
        with phases.phase("train"):
            self._train([replace(t, reward=r) for t, r in zip(made, self.rewards, strict=False)])
        with phases.phase("sync"):
            self.weights.sync()
            self.engine.invalidate()
        return phases

    async def _rollout(self, name: str, prompt: Sequence[int]) -> Trajectory:
        ids, turns = list(prompt), list[Turn]()
        counts = [shape.NEW_IDS] if self.pool is None else [shape.NEW_IDS // 2] * 2
        for turn, count in enumerate(counts):
            params = SamplingParams(max_tokens=count, seed=derive("step", self.steps, name, turn))
            made = await self.engine.generate(name, ids, params)
            segments = [Segment("sampled", "", made.ids, made.logprobs)]
            if self.pool is not None and turn + 1 < len(counts):
                result = await self.pool.run(f"print({sum(made.ids)} % 1000)")
                observed = tuple((result.stdout.encode() * OBSERVED_IDS)[:OBSERVED_IDS])
                segments.append(Segment("observation", result.stdout, observed))
            turns.append(Turn(tuple(segments), stop="length"))
            ids += [i for segment in segments for i in segment.ids or ()]
        await self.engine.release(name)
        return Trajectory(name, name, (Segment("prompt", "", tuple(prompt)),), tuple(turns), stop="length")

    def _train(self, made: Sequence[Trajectory]) -> None:
        groups = [made[start : start + shape.GROUP] for start in range(0, len(made), shape.GROUP)]
        samples = [
            sample
            for group in groups
            for sample in to_samples(group, self.config.advantages(rewards_of(group)), self.config)
        ]
        update(self.model, self.optimizer, samples, self.config, seed=0, step=self.steps, computing=self.computing)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args()
    orders = shape.Orders("retcon-rl", "torch", "transformers")
    dtype = "bfloat16" if options.precision == "bf16" else "float32"
    micro_batch = shape.MICRO_BATCH * (WIDTH + OBSERVED_IDS * options.calls)
    recipe = load_recipe(
        None,
        [
            *("run.threads=1", f"rl.lr={shape.LR}", f"rl.minibatches={options.minibatches}"),
            *("compute.device=cpu", f"compute.dtype={dtype}", f"compute.rollout_dtype={dtype}"),
            f"compute.micro_batch_tokens={micro_batch}",
        ],
    )
    where = place_model(recipe, shape.model_config())
    with torch_settings(where):
        await serve(orders, recipe, where, calls=options.calls)


async def serve(orders: shape.Orders, recipe: Recipe, where: Placement, *, calls: bool) -> None:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(SandboxPool()) if calls else None
        ours = Ours(recipe, where, pool)
        while orders.wait():
            began = time.perf_counter()
            phases = await ours.step()
            orders.answer({"wall": time.perf_counter() - began, "phases": phases})


if __name__ == "__main__":
    asyncio.run(main())
