#!/usr/bin/env python
"""A real language model, SmolLM2-135M: the local engine against transformers, in turns, in CPU-seconds at one thread.

    python benchmarks/real_model.py [--rounds 3] [--only one,rows,…] [--dtype float32]

The model is what `retcon model get smollm2-135m` fetched. Prompts are of random tokens, lengths are forced.

- rows: 32 prompts of 64 tokens, 128 tokens each. one: a single one.
- agents: 16 agents of 4 turns: a prompt of 160 tokens, 64 sampled a turn, 48 shown after each but the last.
- score: log-probs of 16 texts of 600 tokens.
- train: forward and backward over 4 texts of 256 tokens, no optimiser: tokens per
  CPU-second.

engine is `LocalEngine`; trainer is its packed forward. transformers is `generate` over its own cache; for agents every
turn is one batch whose history is computed again; `score` and `train` are plain forwards. CPU time is the process's;
medians (least…most) of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable, Sequence

import torch
from measure import machine, take_turns
from results import add_json, save
from retcon.train.computing import Computing
from retcon.train.forward import forwards
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from retcon.core.sample import Sample
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.devices import TrainDtype
from retcon.models.loading import load_model
from retcon.models.locating import locate

MEASURES = ("src/retcon/engine", "src/retcon/train")
COUNT, PROMPT = 128, 64
AGENTS, TURNS, FIRST, SAMPLED, SHOWN = 16, 4, 160, 64, 48
TEXTS, LENGTH = 16, 600
BATCH, SPAN = 4, 256
Run = Callable[[], object]


def random_ids(model: PreTrainedModel, rows: int, length: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(100, model.config.vocab_size, (rows, length), generator=generator).tolist()


def decode_with_engine(engine: LocalEngine, prompts: Sequence[Sequence[int]]) -> None:
    async def one(number: int, ids: Sequence[int]) -> None:
        await engine.generate(str(number), ids, SamplingParams(max_tokens=COUNT, seed=number))
        await engine.release(str(number))

    async def main() -> None:
        engine.invalidate()
        await asyncio.gather(*(one(number, ids) for number, ids in enumerate(prompts)))

    asyncio.run(main())


def agents_with_engine(engine: LocalEngine) -> None:
    shown = random_ids(engine.model, AGENTS * TURNS, SHOWN, 1)

    async def one(number: int, prompt: Sequence[int]) -> None:
        ids = list(prompt)
        for turn in range(TURNS):
            params = SamplingParams(max_tokens=SAMPLED, seed=number * TURNS + turn)
            ids += [*(await engine.generate(str(number), ids, params)).ids, *shown[number * TURNS + turn]]
        await engine.release(str(number))

    async def main() -> None:
        engine.invalidate()
        await asyncio.gather(*(one(number, ids) for number, ids in enumerate(random_ids(engine.model, AGENTS, FIRST))))

    asyncio.run(main())


def score_with_engine(engine: LocalEngine, texts: Sequence[Sequence[int]]) -> None:
    async def one(number: int, ids: Sequence[int]) -> None:
        await engine.score(str(number), ids, 1)
        await engine.release(str(number))

    async def main() -> None:
        engine.invalidate()
        await asyncio.gather(*(one(number, ids) for number, ids in enumerate(texts)))

    asyncio.run(main())


def generate(model: PreTrainedModel, ids: torch.Tensor, count: int) -> torch.Tensor:
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=True, top_k=0, eos_token_id=None,
                          pad_token_id=0)  # fmt: skip


def agents_with_transformers(model: PreTrainedModel) -> None:
    ids = torch.tensor(random_ids(model, AGENTS, FIRST))
    for turn in range(TURNS):
        ids = torch.cat([generate(model, ids, SAMPLED), torch.tensor(random_ids(model, AGENTS, SHOWN, turn))], 1)


@torch.inference_mode()
def score_with_transformers(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> None:
    for text in texts:  # all at once would hold 2 GB of logits
        ids = torch.tensor([text])
        cross_entropy(model(input_ids=ids).logits[0, :-1].float(), ids[0, 1:], reduction="none")


def train_plainly(model: PreTrainedModel, texts: Sequence[Sequence[int]], dtype: TrainDtype) -> None:
    model.zero_grad()
    ids = torch.tensor(texts)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = model(input_ids=ids, use_cache=False).logits
    cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).backward()


def train_with_ours(model: PreTrainedModel, texts: Sequence[Sequence[int]], dtype: TrainDtype) -> None:
    model.zero_grad()
    samples = [Sample(tuple(ids), (0, *[1] * (SPAN - 1)), (None,) * SPAN) for ids in texts]
    with forwards(model, samples, Computing(dtype=dtype)) as parts:
        for part in parts:
            (-part.logprobs.sum() / (BATCH * (SPAN - 1))).backward()


def workloads(model: PreTrainedModel, dtype: TrainDtype) -> dict[str, dict[str, Run]]:
    """By workload and way, what to run."""
    longest = max(PROMPT + COUNT, FIRST + TURNS * (SAMPLED + SHOWN), LENGTH) + 1
    engine = LocalEngine(model, max_len=longest, max_requests=32)
    many, texts, spans = random_ids(model, 32, PROMPT), random_ids(model, TEXTS, LENGTH), random_ids(model, BATCH, SPAN)
    return {
        "rows": {
            "engine": lambda: decode_with_engine(engine, many),
            "transformers": lambda: generate(model, torch.tensor(many), COUNT),
        },
        "one": {
            "engine": lambda: decode_with_engine(engine, many[:1]),
            "transformers": lambda: generate(model, torch.tensor(many[:1]), COUNT),
        },
        "agents": {
            "engine": lambda: agents_with_engine(engine),
            "transformers": lambda: agents_with_transformers(model),
        },
        "score": {
            "engine": lambda: score_with_engine(engine, texts),
            "transformers": lambda: score_with_transformers(model, texts),
        },
        "train": {
            "trainer": lambda: train_with_ours(model, spans, dtype),
            "transformers": lambda: train_plainly(model, spans, dtype),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="one,rows,agents,score,train", help="workloads, with commas")
    parser.add_argument("--ways", default="", help="one way alone: engine, trainer or transformers")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="weights; train: products")
    parser.add_argument("--model", default="smollm2-135m", help="as a recipe's model.path")
    add_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    figures: dict[str, object] = {}
    for name in options.only.split(","):
        # trained weights stay float32, whatever the products are in
        model = load_model(locate(options.model), "float32" if name == "train" else options.dtype)
        runs = workloads(model, options.dtype)[name]
        runs = {way: run for way, run in runs.items() if options.ways in ("", way)}
        for way, took in take_turns(runs, options.rounds).items():
            seconds = sorted(t.cpu for t in took)
            middle = statistics.median(seconds)
            rate = f", {BATCH * SPAN / middle:,.0f} tokens a CPU-second" if name == "train" else ""
            print(f"{name:8} {way:14} {middle:7.2f} CPU-s ({seconds[0]:.2f}…{seconds[-1]:.2f}){rate}", flush=True)
            figures[f"{name} {way}"] = [middle, seconds[0], seconds[-1]]
    if options.json:
        save(options.json, figures, command="python benchmarks/real_model.py", measures=MEASURES)


if __name__ == "__main__":
    main()
