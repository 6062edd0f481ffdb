#!/usr/bin/env python
"""Wall seconds of engine and trainer on a GPU, against transformers' own.

    python benchmarks/studies/gpu.py [--shapes smollm2-135m,qwen3-0.6b,qwen3-4b] [--rounds 3] [--only one,rows,…]

The models have the shapes of published ones and random weights: what is computed costs the same, and nothing need be
fetched. Decoding is in bfloat16; training has float32 weights and products in bfloat16, as recipes have it on GPUs.
Workloads are those of `real_model.py` (`one`, `rows`, `agents`, `score`, `train`), and two more. `many`: 256 prompts of
64 tokens, 128 tokens each. `rollouts`: forward and backward of 12 prompts × 8 rollouts, 40,000 tokens, in micro-batches
as recipes have them there, and as they have them on a CPU. Prompts are of random tokens, lengths are forced. Medians
(least…most) of the rounds, after one that warms up.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from retcon.core.types import Sample
from retcon.engine.local.engine import LocalEngine
from retcon.models.devices import CHUNK, TOKENS

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
import real_model
from parts.measure import take_turns
from parts.results import add_json, machine, save

MEASURES = ("src/retcon/engine", "src/retcon/train/kernels")
MANY = 256
GROUPS, GROUP = 12, 8
TEXTS = 32
"""Texts of a training step, of `real_model.SPAN` tokens."""


def qwen3(width: int, inner: int, layers: int, heads: int) -> Qwen3Config:
    return Qwen3Config(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                       num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True)  # fmt: skip


SHAPES: dict[str, PretrainedConfig] = {
    "smollm2-135m": LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True,
                                max_position_embeddings=8192),
    "qwen3-0.6b": qwen3(1024, 3072, 28, 16),
    "qwen3-4b": qwen3(2560, 9728, 36, 32),
}  # fmt: skip


def made(shape: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype)
    return model.eval()


def many(model: PreTrainedModel) -> dict[str, Callable[[], object]]:
    prompts = real_model.random_ids(model, MANY, real_model.PROMPT)
    engine = LocalEngine(model, max_len=real_model.PROMPT + real_model.COUNT + 1, max_requests=MANY)
    ids = torch.tensor(prompts, device=model.device)
    return {
        "engine": partial(real_model.decode_with_engine, engine, prompts),
        "transformers": partial(real_model.generate, model, ids, real_model.COUNT),
    }


def rollouts(model: PreTrainedModel) -> dict[str, Callable[[], object]]:
    samples = sampled(model, random.Random(0))
    here = real_model.computing_on(model, "bfloat16")
    small = replace(here, micro_batch_tokens=TOKENS, logits_chunk=CHUNK)
    ways = {"trainer": here, "trainer, small micro-batches": small}
    return {way: partial(real_model.train_with_ours, model, samples, computing) for way, computing in ways.items()}


def sampled(model: PreTrainedModel, rng: random.Random) -> list[Sample]:
    """Make GROUPS × GROUP rollouts, every third 40 tokens masked."""

    def ids(least: int, most: int) -> list[int]:
        return rng.choices(range(100, model.config.vocab_size), k=rng.randrange(least, most))

    samples = []
    for _ in range(GROUPS):
        prompt = ids(120, 300)
        for own in (ids(80, 400) for _ in range(GROUP)):
            mask = [0] * len(prompt) + [int(n // 40 % 3 != 2) for n in range(len(own))]
            samples.append(real_model.sample_of([*prompt, *own], mask))
    return samples


def timed(run: Callable[[], object], synchronise: Callable[[], object]) -> None:
    run()
    synchronise()


OWN = {"many": many, "rollouts": rollouts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="with commas")
    parser.add_argument("--only", default="one,rows,many,agents,score,train,rollouts", help="workloads, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    add_json(parser)
    options = parser.parse_args()
    synchronise = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    name = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else machine()
    print(f"{name}, torch {torch.__version__}", flush=True)
    real_model.BATCH = TEXTS
    figures: dict[str, object] = {}
    for shape in options.shapes.split(","):
        for workload in options.only.split(","):
            trains = workload in ("train", "rollouts")
            model = made(shape, torch.float32 if trains else torch.bfloat16, options.device)
            runs = OWN[workload](model) if workload in OWN else real_model.workloads(model, "bfloat16")[workload]
            began = time.perf_counter()
            for run in runs.values():
                timed(run, synchronise)
            turns = {way: partial(timed, run, synchronise) for way, run in runs.items()}
            for way, took in take_turns(turns, options.rounds).items():
                seconds = sorted(t.wall for t in took)
                middle = statistics.median(seconds)
                figures[f"{shape} {workload} {way}"] = [middle, seconds[0], seconds[-1]]
                if workload == "train":
                    figures[f"{shape} train {way} tokens"] = TEXTS * real_model.SPAN / middle
                print(
                    f"{shape:14} {workload:7} {way:28} {middle:8.3f} s ({seconds[0]:.3f}…{seconds[-1]:.3f})", flush=True
                )
            print(f"{'':14} all of it: {time.perf_counter() - began:.0f} s", flush=True)
            del model, runs, turns
            gc.collect()
            if options.json:
                words = f"--shapes {options.shapes} --only {options.only} --rounds {options.rounds}"
                command = f"python benchmarks/studies/gpu.py {words}"
                save(options.json, {"gpu": name, **figures}, command=command, measures=MEASURES)


if __name__ == "__main__":
    main()
