#!/usr/bin/env python
"""CPU cost and log-prob mismatch of float32, bfloat16, float16 and LoRA.

    python benchmarks/studies/dtypes.py [--widths 64,128,256,512,1024] [--rounds 5]

For each width, Qwen3 models of 2 layers with random weights and 2,304 ids of vocabulary, one torch thread, everything
interleaved, medians of process CPU time over the rounds:

- rollouts: `LocalEngine`, 64 requests of 32 ids each after prompts of 32, over `EngineWeights` in each dtype; with
  adapters of rank 16 merged into the engine's copy, and, for comparison, run as modules;
- training: one optimiser step (`minibatch_update`) on 16 samples of 128 ids, by autocast in each dtype; with adapters;
- sync: copying the trained weights into the engine's.

Then, for the base model of the package, the mismatch of log-probs: 64 samples of 64 ids from engines in each dtype,
against trainers in each.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import LoraSection
from retcon.core.types import Sample
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.devices import Computing, look_at_machine
from retcon.models.locating import BASE
from retcon.models.lora import Adapter
from retcon.models.placing import start_model
from retcon.train.algorithms.dapo import Dapo
from retcon.train.objective.old_logprobs import Mismatch, recompute
from retcon.train.optim import adamw
from retcon.train.rollouts import EngineWeights
from retcon.train.update import minibatch_update

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
VOCAB, PROMPT, REQUESTS, IDS = 2304, 32, 64, 32


def make(width: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=2,
        num_attention_heads=max(2, width // 64), num_key_value_heads=max(1, width // 128), head_dim=min(64, width // 2),
        tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def prompts() -> list[tuple[int, ...]]:
    return [tuple((7 * row + 3 * i) % 2000 + 3 for i in range(PROMPT)) for row in range(REQUESTS)]


def roll_out(model: PreTrainedModel, ids: int = IDS) -> list[Sample]:
    async def main() -> list[Sample]:
        async with LocalEngine(model, max_len=PROMPT + ids + 1) as engine:
            found = await asyncio.gather(
                *(engine.generate(str(n), p, SamplingParams(max_tokens=ids, seed=n)) for n, p in enumerate(prompts()))
            )
        return [sample(p, g.ids, g.logprobs or ()) for p, g in zip(prompts(), found, strict=True)]

    return asyncio.run(main())


def sample(prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float]) -> Sample:
    whole = (*prompt, *ids)
    mask = (0,) * len(prompt) + (1,) * len(ids)
    return Sample(whole, mask, (*(None,) * len(prompt), *logprobs), (0,) * len(whole), (1.0,) * len(whole))


def train(model: PreTrainedModel, optimizer: torch.optim.Optimizer, dtype: str) -> None:
    rows = [tuple((5 * row + 11 * i) % 2000 + 3 for i in range(128)) for row in range(16)]
    samples = [sample(row[:32], row[32:], (-7.0,) * 96) for row in rows]
    minibatch_update(model, optimizer, samples, Dapo(lr=1e-9), computing=Computing(dtype=dtype))  # type: ignore[arg-type]


def cases(width: int) -> dict[str, Callable[[], object]]:
    lora = LoraSection(rank=16)
    trained, adapted = make(width), make(width)
    adapter = Adapter(adapted, lora, seed=0)
    copies = {name: EngineWeights(trained, dtype) for name, dtype in DTYPES.items()}
    merged = EngineWeights(adapted, torch.float32, adapter)
    full, low = (adamw(m, 1e-9, weight_decay=0.0) for m in (trained, adapted))
    return {
        **{f"rollouts {name}": partial(roll_out, copy.model) for name, copy in copies.items()},
        "rollouts LoRA merged": partial(roll_out, merged.model),
        "rollouts LoRA as modules": partial(roll_out, adapted),
        "training float32": partial(train, trained, full, "float32"),
        "training bfloat16": partial(train, trained, full, "bfloat16"),
        "training LoRA float32": partial(train, adapted, low, "float32"),
        "training LoRA bfloat16": partial(train, adapted, low, "bfloat16"),
        "sync to bfloat16": copies["bfloat16"].sync,
        "sync of merged LoRA": merged.sync,
    }


def measure(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if turn:  # the first round warms up
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def mismatches() -> None:
    model = start_model(BASE, 0)
    print("\nmismatch on the base model, nats a token: engine, trainer, mean, largest, KL")
    for engine, dtype in DTYPES.items():
        samples = roll_out(EngineWeights(model, dtype).model, 64)
        for trainer in ("float32", "bfloat16"):
            mismatch = Mismatch()
            recompute(model, samples, mismatch, Computing(dtype=trainer))  # type: ignore[arg-type]
            found = mismatch.metrics()
            print(f"{engine:9} {trainer:9}", *(f"{value:9.1e}" for value in found.values() if value is not None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="64,128,256,512,1024")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    widths = [int(width) for width in options.widths.split(",")]
    found = {width: measure(cases(width), options.rounds) for width in widths}
    print(f"{datetime.date.today()} · {look_at_machine().cpu} · torch {torch.__version__}, 1 thread · CPU-ms by width")
    print(f"{'':25}", *(f"{width:8}" for width in widths))
    for name in found[widths[0]]:
        print(f"{name:25}", *(f"{1000 * found[width][name]:8.1f}" for width in widths))
    mismatches()


if __name__ == "__main__":
    main()
