#!/usr/bin/env python
"""Rollouts of agents on one small model: this engine, `generate` per turn, bare decoding, and a vLLM server.

    python benchmarks/rollout.py [--rounds 3] [--rollouts 48] [--workload agents] [--vllm URL]

The model is Qwen3 with 4 layers of width 256 and random weights, one torch thread; lengths are forced. All ways take
turns in one run; medians (least…most) of ids per second of this process's CPU time, and seconds on the wall.

Workload: rollouts with the recorded lengths and waits of `benchmarks/workloads` (see `studies/record.py`).

- engine: `LocalEngine`, all rollouts at once, each waits for its own tools; fp32 and bf16. As in training, it is made
  once, and every run begins with the weights laid out anew and no memory taken (`invalidate`).
- generate: as loops around `generate` do it: every turn is one left-padded batch, the whole history is prefilled again,
  and the batch waits for its longest row and its slowest tool; fp32 and bf16.
- vllm: a server that serves the same model; `/v1/completions` with ids for ids. No seed is sent: lengths are forced, so
  that none is needed, and a request's own seed kills vLLM's CPU engine where prefills are chunked ("CPU Generator does
  not use offset"). `--vllm-pid` is its process, whose CPU time then counts, with that of those below it; without it,
  read the wall. `--save FOLDER` writes the model for it, with the base model's tokenizer
  (`OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=0 vllm serve FOLDER --served-model-name small --max-model-len 2048`).
  From the second round on it finds the prompts in its cache, which the engine does not.

Decoding: prompts of 48 ids, all different, 64 ids each, all at once.

- engine, sampled, with log-probs;
- bare: the leanest loop in plain torch (`bare.py`), sampled and greedy, without log-probs: the ceiling;
- naive: transformers' forward over its dynamic cache, greedy.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch
from parts.bare import Bare, naive
from parts.measure import VOCAB, Took, machine, rates, small_model, take_turns, tree_seconds
from parts.results import add_json, save
from parts.workload import FOLDER, PlannedRollout, describe, read
from transformers import PreTrainedModel

from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.scheduler import EngineStats
from retcon.engine.types import Generation, SamplingParams
from retcon.models.locating import BASE

PROMPT, COUNT = 48, 64
MEASURES = ("src/retcon/engine",)
Ways = dict[str, Callable[[], object]]
Figures = dict[str, Any]


def with_engine(engine: LocalEngine, plans: Sequence[PlannedRollout]) -> tuple[EngineStats, list[Generation]]:
    """What the engine did, and what it generated: the turns of each rollout, in the order of `plans`."""

    async def rollout(plan: PlannedRollout) -> list[Generation]:
        ids, turns = list(plan.prompt), []
        for number, (turn, shown) in enumerate(zip(plan.turns, plan.shown, strict=True)):
            params = SamplingParams(max_tokens=turn.sampled, seed=int(plan.name) * 100 + number)
            turns.append(await engine.generate(plan.name, ids, params))
            ids.extend(turns[-1].ids)
            ids.extend(shown)
            await asyncio.sleep(turn.seconds)
        await engine.release(plan.name)
        return turns

    async def main() -> tuple[EngineStats, list[Generation]]:
        before = replace(engine.stats)
        engine.invalidate()
        done = await asyncio.gather(*(rollout(plan) for plan in plans))
        return engine.stats.since(before), list(itertools.chain(*done))

    return asyncio.run(main())


def with_generate(model: PreTrainedModel, plans: Sequence[PlannedRollout]) -> None:
    histories = {plan.name: list(plan.prompt) for plan in plans}
    for number in itertools.count():
        live = [plan for plan in plans if number < len(plan.turns)]
        if not live:
            return
        width = max(len(histories[plan.name]) for plan in live)
        pads = [width - len(histories[plan.name]) for plan in live]
        ids = torch.tensor([[0] * pad + histories[plan.name] for pad, plan in zip(pads, live, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
        longest = max(plan.turns[number].sampled for plan in live)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, top_k=0,
                             eos_token_id=None, pad_token_id=0)  # fmt: skip
        for row, plan in zip(out[:, width:].tolist(), live, strict=True):
            histories[plan.name] += [*row[: plan.turns[number].sampled], *plan.shown[number]]
        time.sleep(max(plan.turns[number].seconds for plan in live))


def with_vllm(url: str, model: str, plans: Sequence[PlannedRollout]) -> None:
    async def rollout(client: httpx.AsyncClient, plan: PlannedRollout) -> None:
        ids = list(plan.prompt)
        for turn, shown in zip(plan.turns, plan.shown, strict=True):
            body = {
                "model": model,
                "prompt": ids,
                "max_tokens": turn.sampled,
                "min_tokens": turn.sampled,
                "ignore_eos": True,
                "temperature": 1.0,
                "logprobs": 0,
                "return_token_ids": True,
                "add_special_tokens": False,
            }
            answer = await client.post("/v1/completions", json=body)
            answer.raise_for_status()
            ids.extend(answer.json()["choices"][0]["token_ids"])
            ids.extend(shown)
            await asyncio.sleep(turn.seconds)

    async def main() -> None:
        limits = httpx.Limits(max_connections=len(plans))
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
            await asyncio.gather(*(rollout(client, plan) for plan in plans))

    asyncio.run(main())


def decode_with_engine(engine: LocalEngine, prompts: Sequence[Sequence[int]]) -> None:
    async def one(number: int, prompt: Sequence[int]) -> None:
        await engine.generate(str(number), prompt, SamplingParams(max_tokens=COUNT, seed=number))
        await engine.release(str(number))

    async def main() -> None:
        engine.invalidate()
        await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))

    asyncio.run(main())


def workload(models: dict[str, PreTrainedModel], file: Path, options: argparse.Namespace) -> Figures:
    plans = read(file, vocabulary=VOCAB, limit=options.rollouts)
    sampled = sum(turn.sampled for plan in plans for turn in plan.turns)
    print(f"\n{file.stem}: {describe(plans)}", flush=True)
    stats: dict[str, EngineStats] = {}
    longest = max(plan.length for plan in plans) + 1
    engines = {name: LocalEngine(model, max_len=longest, max_requests=len(plans)) for name, model in models.items()}

    def engine(name: str) -> None:
        stats[name], _ = with_engine(engines[name], plans)

    for name, model in models.items():  # what happens once is over
        with_engine(engines[name], plans[:2])
        with_generate(model, plans[:2])
    ways: Ways = {f"engine {name}": lambda name=name: engine(name) for name in models}
    ways |= {f"generate {name}": lambda model=model: with_generate(model, plans) for name, model in models.items()}
    if options.vllm:
        ways["vllm"] = lambda: with_vllm(options.vllm, options.vllm_model, plans)
    clocks = {"vllm": lambda: tree_seconds(options.vllm_pid)} if options.vllm_pid else None
    took = take_turns(ways, options.rounds, clocks)
    figures = table(took, sampled)
    for name, one in stats.items():
        print(f"engine {name}: {one}")
        if one.batch is not None and one.utilisation is not None:
            print(f"  mean batch {one.batch:.1f}, utilisation {one.utilisation:.0%}")
    for dtype in ("bf16", "fp32"):
        figures |= ratio(f"engine {dtype}", f"generate {dtype}", took)
        if options.vllm_pid:
            figures |= ratio(f"engine {dtype}", "vllm", took)
    return figures


def decoding(models: dict[str, PreTrainedModel], batch: int, rounds: int) -> Figures:
    prompts = torch.randint(0, VOCAB, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))
    lists = prompts.tolist()
    ways: Ways = {}
    print(f"\ndecoding, batch {batch}: prompts of {PROMPT} tokens, {COUNT} tokens each")
    for name, model in models.items():
        bare = Bare(models["fp32"], model.dtype, PROMPT + COUNT)  # type: ignore[arg-type]
        engine = LocalEngine(model, max_len=PROMPT + COUNT, max_requests=batch)
        ways[f"engine {name}"] = lambda engine=engine: decode_with_engine(engine, lists)
        ways[f"bare {name}"] = lambda bare=bare: bare.run(prompts, COUNT, "sampled")
        ways[f"bare {name}, greedy"] = lambda bare=bare: bare.run(prompts, COUNT, "greedy")
        ways[f"naive {name}, greedy"] = lambda model=model: naive(model, prompts, COUNT)
        same = (bare.run(prompts, COUNT, "greedy") == naive(model, prompts, COUNT)).float().mean()
        print(f"{name}: {same:.2%} of the bare loop's greedy ids are those of the naive one")
    took = take_turns(ways, rounds)
    figures = table(took, batch * COUNT)
    for name in models:
        for other in (f"bare {name}", f"naive {name}, greedy"):
            figures |= ratio(f"engine {name}", other, took)
    return figures


def table(took: dict[str, list[Took]], sampled: int) -> Figures:
    figures: Figures = {}
    print(f"{'':22} {'tokens per CPU-second':>30} {'CPU-s':>8} {'wall s':>8}")
    for name, values in took.items():
        cpu = [value.cpu for value in values]
        wall = statistics.median(value.wall for value in values)
        print(f"{name:22} {rates(sampled, cpu):>30} {statistics.median(cpu):8.2f} {wall:8.2f}")
        figures[name] = {"tokens per CPU-second": sampled / statistics.median(cpu), "wall s": wall}
    return figures


def ratio(ours: str, theirs: str, took: dict[str, list[Took]]) -> Figures:
    """Of tokens per CPU-second, and of the wall's seconds, round by round."""
    name, pairs = f"{ours} to {theirs}", list(zip(took[ours], took[theirs], strict=True))
    by_cpu = [b.cpu / a.cpu for a, b in pairs]
    by_wall = [b.wall / a.wall for a, b in pairs]
    print(
        f"{name}: {statistics.median(by_cpu):.2f} ({min(by_cpu):.2f}…{max(by_cpu):.2f}) by CPU time, "
        f"{statistics.median(by_wall):.2f} ({min(by_wall):.2f}…{max(by_wall):.2f}) by the wall"
    )
    return {name: [statistics.median(by_cpu), min(by_cpu), max(by_cpu)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=48, help="the first so many of a workload, 64 at most")
    names = sorted(file.stem for file in FOLDER.glob("*.jsonl"))
    parser.add_argument("--workload", choices=names, action="append", help="this one alone; may be repeated")
    parser.add_argument("--batch", type=int, nargs="*", default=[64, 256], help="of decoding; none: leave it out")
    parser.add_argument("--vllm", metavar="URL", help="of a vLLM server, such as http://127.0.0.1:8000")
    parser.add_argument("--vllm-model", metavar="NAME", default="small", help="as the server names it")
    parser.add_argument("--vllm-pid", type=int, metavar="PID", help="of the server here: its CPU time counts")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write the model and do nothing else")
    add_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = small_model()
    if options.save:
        model.save_pretrained(options.save)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BASE / name, options.save)
        return
    models: dict[str, PreTrainedModel] = {"fp32": model, "bf16": copy.deepcopy(model).bfloat16()}
    print(machine())
    found = {name: workload(models, FOLDER / f"{name}.jsonl", options) for name in options.workload or names}
    found |= {f"decoding {batch}": decoding(models, batch, options.rounds) for batch in options.batch}
    if options.json:
        save(options.json, found, command=f"benchmarks/rollout.py --rounds {options.rounds}", measures=MEASURES)


if __name__ == "__main__":
    main()
