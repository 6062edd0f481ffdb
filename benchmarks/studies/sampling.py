#!/usr/bin/env python
"""CPU time of sampling a batch's ids, against bare kernels and transformers.

    python benchmarks/studies/sampling.py [--rounds 7]

Logits are normal with a standard deviation of 2 (flat, as of a model that knows nothing) or 6 (peaked, as of a trained
one); one torch thread; medians over the rounds, interleaved.

- floor: softmax and cumulative sum over the vocabulary, which plain inverse-CDF sampling of full rows consists of;
- ours: `Sampler`, which gives ids, their log-probs and those of the distribution that was sampled from;
- transformers: the warpers of `generate`, softmax, multinomial, and log_softmax for the log-probs of the model.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from retcon.engine.local.sampling import Sampler
from retcon.engine.types import SamplingParams

SHAPES = ((256, 2304), (64, 151_936))
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "plain": SamplingParams(),
    "T .6": SamplingParams(temperature=0.6),
    "top-p .95": SamplingParams(top_p=0.95),
    "T .6, top-p .95, top-k 20": SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
    "top-k 50": SamplingParams(top_k=50),
    "min-p .05": SamplingParams(min_p=0.05),
}


def transformers_way(params: SamplingParams) -> Callable[[Tensor], Tensor]:
    """ids, and log-probs of the model, as `generate` would find them."""
    warpers = LogitsProcessorList()
    if params.temperature not in (0, 1):
        warpers.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    none = torch.empty(0, dtype=torch.long)

    def sample(logits: Tensor) -> Tensor:
        scores = logits.float()
        if params.temperature == 0:
            ids = scores.argmax(-1)
        else:
            ids = warpers(none, scores).softmax(-1).multinomial(1).squeeze(1)
        return scores.log_softmax(-1).gather(1, ids[:, None])

    return sample


def milliseconds(work: Callable[[], object], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times * 1e3


def measure(logits: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """By setting: ms of ours and of transformers; under "floor" the floor twice."""
    count = len(logits)
    times = max(1, 2_000_000 // logits.numel() * 3)
    uniform = torch.rand(count)
    work: dict[tuple[str, int], Callable[[], object]] = {}
    for name, params in SETTINGS.items():
        sampler, theirs = Sampler([params] * count, torch.device("cpu")), transformers_way(params)
        work[name, 0] = lambda sampler=sampler: sampler(logits, uniform)
        work[name, 1] = lambda theirs=theirs: theirs(logits)
    work["floor", 0] = work["floor", 1] = lambda: logits.float().softmax(-1).cumsum(-1)
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in work}
    for _ in range(rounds + 1):
        for key, job in work.items():
            taken[key].append(milliseconds(job, times))
    median = {key: statistics.median(values[1:]) for key, values in taken.items()}  # the first round warms up
    return {name: (median[name, 0], median[name, 1]) for name in ("floor", *SETTINGS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}; ms of CPU a batch")
    for count, vocab in SHAPES:
        for kind, spread in (("flat", 2), ("peaked", 6)):
            for dtype in (torch.float32, torch.bfloat16):
                logits = (torch.randn(count, vocab) * spread).to(dtype)
                with torch.inference_mode():
                    results = measure(logits, rounds)
                print(f"\n{count} × {vocab}, {kind}, {dtype}: floor {results.pop('floor')[0]:.2f}")
                for name, (ours, theirs) in results.items():
                    print(f"  {name:28} ours {ours:8.2f}   transformers {theirs:8.2f}   {theirs / ours:5.1f}×")


if __name__ == "__main__":
    main()
