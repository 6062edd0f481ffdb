"""Ids per CPU-second of the local engine on a tool-using workload, against transformers' `generate`.

    python benchmarks/decode.py [--rounds 5] [--layers 2] [--rollouts 96]

Every rollout takes 2 to 5 turns of 20 to 60 ids, each followed by a short observation; rollouts of a group share their
prompt; random weights, one torch thread. Compared, interleaved, medians of process CPU time over the rounds:

- engine: `LocalEngine`, all rollouts concurrently, keys and values kept over turns;
- generate: transformers' `generate`, one left-padded batch per turn that prefills the whole history again;
- floor: the bare model forwards that the engine's decode steps consist of, over keys and values of the same size,
  without sampling, prefill or bookkeeping: what no engine over these modules can beat.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from retcon.engine.cache import SlotCache, Step
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from retcon.engine.forward import decode
from retcon.engine.local import LocalEngine
from retcon.engine.types import SamplingParams

MAX_LEN, VOCAB, GROUP = 416, 2304, 8


@dataclass(frozen=True, slots=True)
class Plan:
    """One rollout: its prompt, and per turn how many ids it generates and which ids it is then shown."""

    name: str
    prompt: tuple[int, ...]
    turns: tuple[tuple[int, tuple[int, ...]], ...]


def workload(rollouts: int, seed: int) -> list[Plan]:
    draw = random.Random(seed)

    def some(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCAB) for _ in range(count))

    plans, prompt = [], some(40)
    for index in range(rollouts):
        if index % GROUP == 0:
            prompt = some(draw.randint(30, 50))
        turns, room = [], 256 - len(prompt)
        for _ in range(draw.randint(2, 5)):
            count, shown = draw.randint(20, 60), some(draw.randint(8, 16))
            if count + len(shown) > room:
                break
            room -= count + len(shown)
            turns.append((count, shown))
        plans.append(Plan(f"{index:03}", prompt, tuple(turns)))
    return plans


def run_engine(model: PreTrainedModel, plans: list[Plan]) -> str:
    async def rollout(engine: LocalEngine, plan: Plan) -> None:
        ids = list(plan.prompt)
        for turn, (count, shown) in enumerate(plan.turns):
            params = SamplingParams(max_tokens=count, seed=int(plan.name) * 100 + turn)
            ids.extend((await engine.generate(plan.name, ids, params)).ids)
            ids.extend(shown)
        await engine.release(plan.name)

    async def main() -> str:
        async with LocalEngine(model, max_len=MAX_LEN) as engine:
            await asyncio.gather(*(rollout(engine, plan) for plan in plans))
            return str(engine.stats)

    return asyncio.run(main())


def run_generate(model: PreTrainedModel, plans: list[Plan]) -> str:
    histories = {plan.name: list(plan.prompt) for plan in plans}
    for turn in range(max(len(plan.turns) for plan in plans)):
        live = [plan for plan in plans if turn < len(plan.turns)]
        width = max(len(histories[plan.name]) for plan in live)
        pads = [width - len(histories[plan.name]) for plan in live]
        ids = torch.tensor([[0] * pad + histories[plan.name] for pad, plan in zip(pads, live, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
        longest = max(plan.turns[turn][0] for plan in live)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, top_k=0,
                             eos_token_id=None, pad_token_id=0)  # fmt: skip
        for row, plan in zip(out[:, width:].tolist(), live, strict=True):
            count, shown = plan.turns[turn]
            histories[plan.name] += [*row[:count], *shown]
    return ""


def run_floor(model: PreTrainedModel, plans: list[Plan]) -> str:
    cache = SlotCache(model.config.num_hidden_layers, len(plans), MAX_LEN)
    with torch.inference_mode():
        lengths = {plan.name: len(plan.prompt) for plan in plans}
        for turn in range(max(len(plan.turns) for plan in plans)):
            live = [plan for plan in plans if turn < len(plan.turns)]
            for step in range(1, max(plan.turns[turn][0] for plan in live)):
                rows = [plan for plan in live if step < plan.turns[turn][0]]
                positions = torch.tensor([lengths[plan.name] + step - 1 for plan in rows])
                length = int(positions.max()) + 1
                access = Step(rows=torch.arange(len(rows)), positions=positions, length=length)
                decode(model, cache, positions, access, torch.zeros(len(rows), 1, 1, length))
            for plan in live:
                lengths[plan.name] += plan.turns[turn][0] + len(plan.turns[turn][1])
    return ""


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=128,
            num_hidden_layers=options.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            intermediate_size=384,
            tie_word_embeddings=True,
            max_position_embeddings=512,
        )
    ).eval()
    plans = workload(options.rollouts, seed=0)
    generated = sum(count for plan in plans for count, _ in plan.turns)
    runs: dict[str, Callable[[PreTrainedModel, list[Plan]], str]] = {
        "engine": run_engine, "generate": run_generate, "floor": run_floor,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    stats = run_engine(model, plans)  # warm-up
    for _ in range(options.rounds):
        for name, run in runs.items():
            start = time.process_time()
            run(model, plans)
            seconds[name].append(time.process_time() - start)
    print(f"{datetime.date.today()} · {cpu_name()} · torch {torch.__version__}, 1 thread · {options.layers} layers, "
          f"{len(plans)} rollouts, {sum(len(p.turns) for p in plans)} turns, {generated} ids")  # fmt: skip
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"{name:9} {median:6.2f} CPU-s ({min(values):.2f}…{max(values):.2f})  {generated / median:8.0f} ids/CPU-s"
        )
    print(stats)


if __name__ == "__main__":
    main()
