"""How quick this machine is with a recipe's model: a short measurement, in a process of its own, so that no memory is
kept.

    python -m retcon.cli.quickstart.speed RECIPE [KEY=VALUE]...

prints a `Speed` as JSON; 20 to 60 seconds for a model of 135 million parameters on two cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RetconError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from retcon.train.kernels.computing import Computing

TEXTS, LENGTH, LEARNT = 8, 160, 100
"""Texts enough for what a micro-batch costs whatever its size, the cast of all weights above all, to weigh as little
as in training."""
ROWS, STEPS = 32, 8


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a wall second, where the recipe computes: learnt from (forward and backward, whole texts counted) with one
    thread and with the recipe's, and sampled by 32 rollouts side by side with one thread."""

    learnt: float
    learnt_threads: float
    sampled: float


class MeasuringFailed(RetconError):
    """The measurement ended with an error; the message has the end of what it said."""


def measure_speed(recipe: str, overrides: Sequence[str]) -> Speed:
    """Measures the model of a recipe, in another process. Raises MeasuringFailed."""
    words = [sys.executable, "-m", __name__, recipe, *overrides]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise MeasuringFailed(f"measuring the model ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return Speed(**json.loads(done.stdout.splitlines()[-1]))


def _measured(recipe: Recipe) -> Speed:
    import torch

    from retcon.models.devices import set_threads
    from retcon.models.placing import model_folder, place_training, start_model
    from retcon.train.kernels.computing import computing_of

    where = place_training(recipe, model_folder(recipe.model.path))
    computing, threads = computing_of(recipe.compute, where), recipe.run.threads
    model = start_model(recipe.model.path, recipe.run.seed, where.attention, where.device)
    set_threads(threads)
    _learn(model, TEXTS, computing)  # the first of a shape compiles kernels and touches memory
    together = TEXTS * LENGTH / _learn(model, TEXTS, computing)
    set_threads(1)
    alone = together if threads == 1 else TEXTS * LENGTH / _learn(model, TEXTS, computing)
    model.zero_grad()
    sampled = ROWS * STEPS / _sample(model.to(getattr(torch, where.rollout_dtype)))
    return Speed(round(alone, 1), round(together, 1), round(sampled, 1))


def _learn(model: PreTrainedModel, texts: int, computing: Computing) -> float:
    """Seconds of a forward and a backward over some texts."""
    from retcon.core.types import Sample
    from retcon.train.kernels.forward import forwards

    mask, nothing = (0,) * (LENGTH - LEARNT) + (1,) * LEARNT, (0,) * LENGTH
    samples = [Sample(_ids(model, text), mask, (None,) * LENGTH, nothing) for text in range(texts)]
    began = time.perf_counter()
    with forwards(model, samples, computing) as parts:
        for part in parts:
            loss = -part.logprobs.sum()
            loss.backward()
            loss.item()  # waits for a GPU
    return time.perf_counter() - began


def _sample(model: PreTrainedModel) -> float:
    """Seconds of STEPS tokens of ROWS rollouts."""
    from retcon.engine.local.engine import LocalEngine
    from retcon.engine.types import SamplingParams

    async def rollouts(engine: LocalEngine, steps: int) -> None:
        async def one(row: int) -> None:
            prompt = _ids(model, row // 8)[: LENGTH - LEARNT]
            await engine.generate(str(row), prompt, SamplingParams(max_tokens=steps, seed=row))
            await engine.release(str(row))

        await asyncio.gather(*(one(row) for row in range(ROWS)))

    engine = LocalEngine(model, max_len=LENGTH, max_requests=ROWS)
    asyncio.run(rollouts(engine, 1))
    engine.invalidate()
    began = time.perf_counter()
    asyncio.run(rollouts(engine, STEPS))
    return time.perf_counter() - began


def _ids(model: PreTrainedModel, seed: int) -> tuple[int, ...]:
    import torch

    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, vocabulary, (LENGTH,), generator=generator).tolist())


if __name__ == "__main__":
    name, *overrides = sys.argv[1:]
    print(json.dumps(asdict(_measured(load_recipe(name, overrides)))))
