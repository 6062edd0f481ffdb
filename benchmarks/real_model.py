#!/usr/bin/env python
"""A real language model, SmolLM2-135M: the local engine against others, in turns, in CPU-seconds at one thread.

    python benchmarks/real_model.py [--rounds 3] [--only one,rows,…] [--dtype bfloat16]
        [--vllm URL PID] [--llama URL PID]

The model is what `retcon model get smollm2-135m` fetched. Prompts are of random tokens, lengths are forced.

- rows: 32 prompts of 64 tokens, 128 tokens each. one: a single one.
- agents: 16 agents of 4 turns: a prompt of 160 tokens, 64 sampled a turn, 48 shown after each but the last.
- score: log-probs of 16 texts of 600 tokens.
- train: forward and backward over 4 texts of 256 tokens, no optimiser: tokens per CPU-second.

engine is `LocalEngine`; trainer is its packed forward. transformers is `generate` over its own cache; for agents every
turn is one batch whose history is computed again; `score` and `train` are plain forwards. vllm and llama are servers of
the same model on this machine, with one thread (`real_servers.py`); PID is the server's process, whose CPU time
counts. They get other prompts in every round, as they keep what they have seen. CPU time is the process's; medians
(least…most) of the rounds. For `rows` the share of the roofline is shown too (`roofline.py`).

    VLLM_CPU_OMP_THREADS_BIND=0 OMP_NUM_THREADS=1 vllm serve FOLDER --served-model-name small --dtype bfloat16
        --enforce-eager --max-model-len 2048
    llama-server -m FILE.gguf -t 1 -tb 1 -np 32 -c 36864 --no-kv-unified
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from parts import real_servers
from parts.measure import machine, take_turns, tree_seconds
from parts.real_servers import LlamaCpp, Server, Vllm
from parts.results import add_json, save
from roofline import measure_roof
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from retcon.config.schema import ComputeSection
from retcon.core.types import Sample
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.devices import Computing, TrainDtype, choose, computing_of, look_at_machine
from retcon.models.loading import load_model
from retcon.models.locating import locate
from retcon.train.kernels.forward import forwards

MEASURES = ("src/retcon/engine", "src/retcon/train/kernels")
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
    ids = torch.tensor(random_ids(model, AGENTS, FIRST), device=model.device)
    for turn in range(TURNS):
        shown = torch.tensor(random_ids(model, AGENTS, SHOWN, turn), device=model.device)
        ids = torch.cat([generate(model, ids, SAMPLED), shown], 1)


@torch.inference_mode()
def score_with_transformers(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> None:
    for text in texts:  # all at once would hold 2 GB of logits
        ids = torch.tensor([text], device=model.device)
        cross_entropy(model(input_ids=ids).logits[0, :-1].float(), ids[0, 1:], reduction="none")


def train_plainly(model: PreTrainedModel, texts: Sequence[Sequence[int]], dtype: TrainDtype) -> None:
    model.zero_grad()
    ids = torch.tensor(texts, device=model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = model(input_ids=ids, use_cache=False).logits
    cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).backward()


def train_with_ours(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> None:
    model.zero_grad()
    learnt = sum(sum(sample.mask) for sample in samples)
    with forwards(model, samples, computing) as parts:
        for part in parts:
            (-part.logprobs.sum() / learnt).backward()


def sample_of(ids: Sequence[int], mask: Sequence[int]) -> Sample:
    """mask: 1 where an id is learnt."""
    return Sample(tuple(ids), tuple(mask), (None,) * len(ids), (0,) * len(ids))


def computing_on(model: PreTrainedModel, dtype: TrainDtype) -> Computing:
    """Return how a recipe with only a dtype computes on this device."""
    section = ComputeSection(device=str(model.device), dtype=dtype)
    return computing_of(section, choose(section, model.config, look_at_machine(), threads=torch.get_num_threads()))


def workloads(model: PreTrainedModel, dtype: TrainDtype) -> dict[str, dict[str, Run]]:
    """By workload and way, what to run."""
    longest = max(PROMPT + COUNT, FIRST + TURNS * (SAMPLED + SHOWN), LENGTH) + 1
    engine = LocalEngine(model, max_len=longest, max_requests=32)
    many, texts, spans = random_ids(model, 32, PROMPT), random_ids(model, TEXTS, LENGTH), random_ids(model, BATCH, SPAN)
    samples = [sample_of(ids, (0, *[1] * (SPAN - 1))) for ids in spans]
    return {
        "rows": {
            "engine": lambda: decode_with_engine(engine, many),
            "transformers": lambda: generate(model, torch.tensor(many, device=model.device), COUNT),
        },
        "one": {
            "engine": lambda: decode_with_engine(engine, many[:1]),
            "transformers": lambda: generate(model, torch.tensor(many[:1], device=model.device), COUNT),
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
            "trainer": partial(train_with_ours, model, samples, computing_on(model, dtype)),
            "transformers": lambda: train_plainly(model, spans, dtype),
        },
    }


def of_server(server: Server, model: PreTrainedModel) -> dict[str, Run]:
    """By workload, what to ask the server."""
    seeds = itertools.count(100)

    def prompts(rows: int, length: int) -> list[list[int]]:
        return random_ids(model, rows, length, next(seeds))

    def agents() -> None:
        shown = [prompts(TURNS, SHOWN) for _ in range(AGENTS)]
        real_servers.converse(server, prompts(AGENTS, FIRST), shown, SAMPLED)

    runs: dict[str, Run] = {
        "rows": lambda: real_servers.decode(server, prompts(32, PROMPT), COUNT),
        "one": lambda: real_servers.decode(server, prompts(1, PROMPT), COUNT),
        "agents": agents,
    }
    if isinstance(server, Vllm):
        runs["score"] = lambda: real_servers.score(server, prompts(TEXTS, LENGTH))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="one,rows,agents,score,train", help="workloads, with commas")
    parser.add_argument("--ways", default="", help="these ways alone, with commas")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="weights; train: products")
    parser.add_argument("--model", default="smollm2-135m", help="as a recipe's model.path")
    parser.add_argument("--vllm", nargs=2, metavar=("URL", "PID"))
    parser.add_argument("--llama", nargs=2, metavar=("URL", "PID"))
    add_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    roof = measure_roof(getattr(torch, options.dtype))
    figures: dict[str, object] = {"GB read a second": roof.bytes / 1e9, "GFLOP a second": roof.flops / 1e9}
    print(f"{roof.bytes / 1e9:.1f} GB/s read, {roof.flops / 1e9:.0f} GFLOP/s in {options.dtype}")
    servers: dict[str, Server] = {}
    for way, kind in {"vllm": Vllm, "llama": LlamaCpp}.items():
        if given := getattr(options, way):
            servers[way] = kind(given[0], int(given[1]))
    clocks = {way: partial(tree_seconds, server.pid) for way, server in servers.items()}
    for name in options.only.split(","):
        # trained weights stay float32, whatever the products are in
        model = load_model(locate(options.model), "float32" if name == "train" else options.dtype)
        runs = workloads(model, options.dtype)[name]
        runs |= {way: found[name] for way, server in servers.items() if name in (found := of_server(server, model))}
        runs = {way: run for way, run in runs.items() if not options.ways or way in options.ways.split(",")}
        for way, took in take_turns(runs, options.rounds, clocks).items():
            seconds = sorted(t.cpu for t in took)
            middle = statistics.median(seconds)
            rate = f", {BATCH * SPAN / middle:,.0f} tokens a CPU-second" if name == "train" else ""
            print(f"{name:8} {way:14} {middle:7.2f} CPU-s ({seconds[0]:.2f}…{seconds[-1]:.2f}){rate}", flush=True)
            figures[f"{name} {way}"] = [middle, seconds[0], seconds[-1]]
            if name == "train":
                figures[f"{name} {way} tokens"] = BATCH * SPAN / middle
            if (name, way) == ("rows", "engine"):
                steps = sum(roof.step(model, 32, PROMPT + n) for n in range(COUNT))
                share = (roof.feed(model, 32 * PROMPT) + steps) / middle
                print(f"{'':8} that is {share:.0%} of the roofline")
                figures["roofline of rows"] = share
        if options.json:  # after every workload, as all of them take long
            command = f"python benchmarks/real_model.py --rounds {options.rounds} --dtype {options.dtype}"
            save(options.json, figures, command=command, measures=MEASURES)


if __name__ == "__main__":
    main()
