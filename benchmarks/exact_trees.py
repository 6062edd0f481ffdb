#!/usr/bin/env python
"""Random trees of rollouts, checked node by node against a fresh scoring. docs/training/recursive.md.

    python benchmarks/exact_trees.py [--trees 500] [--seed 0]

A small untrained model answers; now and then it writes what a script dictates: programs that call it, fail, or both.
Failed calls are repaired, rollouts branch off each other, prompts and answers are cut, and the engine has faults. Of
each node the ids in the loss mask must have the log-probs of one forward over all of it; of all nodes together every
sampled token must stand in exactly one of them, and every token that can be trained in exactly one sample.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError
from retcon.core.seeds import derive
from retcon.core.types import TRAINED, Observation, Sample, ToolCall, ToolSpec, Trajectory, history_ids, token_count
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.purify.saar import Saar
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, RolloutLimits, SubcallLimits
from retcon.rollout.group import rollout_group
from retcon.rollout.strategies.arpo import Arpo
from retcon.tasks.types import Task
from retcon.tools.types import ModelCalls
from retcon.train.objective.tree import credit_groups, node_fates
from retcon.train.update import to_samples

TOKENIZER = ByteTokenizer()
END = TOKENIZER.special_id("<|im_end|>")
TASK = Task("t", "Go.", "1")
PROGRAMS = ("x", "fail", "ask 1", "ask 2", "ask 2 fail", "recurse 1", "recurse 2", "recurse 1 fail", "ask 1 recurse 1")
GROUP = 3


class Asking:
    """Implements `TaskTool` and `Tool`: a program is words: `ask N`, `recurse N`, `fail`."""

    name = "python"
    spec = ToolSpec("python")

    def __init__(self, model: ModelCalls | None = None) -> None:
        self._model = model

    def of(self, task: str, trajectory: str, model: ModelCalls | None = None) -> Asking:
        return Asking(model)

    async def __call__(self, call: ToolCall) -> Observation:
        words, found = call.code.split(), []
        for word, count in pairwise(words):
            if self._model is not None and count.isdigit():
                ask = self._model.complete if word == "ask" else self._model.recurse
                found += await ask(call.id, ["Go.", "Go on.", "Go." * 400][: int(count)])
        text = " ".join(found)[:40]
        return Observation(call.id, text, "error" if "fail" in words else "ok", "Failed" if "fail" in words else None)


class ScriptedLocalEngine:
    """Local engine that at times writes a program or has a fault. tokens: generated, by request."""

    def __init__(self, engine: LocalEngine, seed: int) -> None:
        self._engine, self._seed = engine, seed
        self._turns = Counter[str]()
        self.tokens = Counter[str]()
        self.lost: set[str] = set()

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self._turns[request_id] += 1
        rng = random.Random(derive("dictated", self._seed, request_id, self._turns[request_id]))
        depth = request_id.count("/") // 2 - 1
        if rng.random() < 0.03:
            raise ConnectionError("gone")
        if depth and rng.random() < 0.05:
            self.lost.add(request_id)
            raise EngineError("refused")
        if rng.random() < 0.7 / (1 + depth):
            text = f"{rng.choice(('', 'Hm. '))}```python\n{rng.choice(PROGRAMS)}\n```"
            written = (*TOKENIZER.encode(text), END)[: params.max_tokens]
            logprobs = tuple(await self._engine.score(request_id, [*ids, *written], len(ids)))
            made = Generation(written, logprobs, "stop" if written[-1] == END else "length")
        else:
            made = await self._engine.generate(request_id, ids, params)
        self.tokens[request_id] += len(made.ids)
        return made

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        return await self._engine.score(request_id, ids, start)

    async def release(self, request_id: str) -> None:
        await self._engine.release(request_id)


def small_model() -> Qwen3ForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 2048}
        config = Qwen3Config(**sizes, **heads, tie_word_embeddings=True, initializer_range=0.3)
        return Qwen3ForCausalLM(config).eval()


@dataclass
class Found:
    """What was checked. worst: greatest difference of a log-prob, nats."""

    trees: int = 0
    nodes: int = 0
    trained: int = 0
    branches: int = 0
    repaired: int = 0
    worst: float = 0.0
    fates: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


def check_trees(model: Qwen3ForCausalLM, seed: int, found: Found) -> None:
    """Roll out one group of trees, and check each."""
    rng = random.Random(derive("trees", seed))
    repair = rng.choice((None, Saar(), Saar(attempts=1), Saar(gamma=0.0, lookahead="latest")))
    branching = rng.random() < 0.4
    limits = RolloutLimits(rng.choice((400, 900)), rng.choice((2, 4)), rng.choice((0, 400)))
    group, engine = asyncio.run(_roll_out(model, seed, repair, branching, limits))
    lost = tuple(engine.lost)  # what the engine refuses leaves no trajectory, nor do those below it
    sampled = Counter({id: count for id, count in engine.tokens.items() if count and not id.startswith(lost)})
    nodes = [node for root in group for node in root.tree]
    stored = Counter({node.id: node.sampled_tokens for node in nodes if node.sampled_tokens})
    if stored != sampled:
        found.errors.append(f"seed {seed}: sampled and stored tokens differ: {stored - sampled} {sampled - stored}")
    for root in group:
        found.trees += 1
        found.branches += root.branch is not None
        found.fates.update(fate or "trained" for node, fate in node_fates(root, RECIPE.rl) if node is not root)
    kept = [replace(root, reward=float(n)) for n, root in enumerate(group) if root.stop != "infrastructure"]
    (credited,), _ = credit_groups([kept], RECIPE.rl, RECIPE.credit, limits) if kept else ([None], [])
    samples = to_samples(credited.nodes, credited.advantages, RECIPE.rl, credited.scales) if credited else []
    _check_samples(samples, kept, seed, found)
    for node in nodes:
        found.nodes += 1
        found.stops[node.stop] += 1
        found.repaired += any(turn.repair is not None and turn.repair.decision != "unrepaired" for turn in node.turns)
        _check_scores(model, node, seed, found)


RECIPE = load_recipe(None, ["credit.kind=inherit"])


async def _roll_out(
    model: Qwen3ForCausalLM, seed: int, repair: Repair | None, branching: bool, limits: RolloutLimits
) -> tuple[list[Trajectory], ScriptedLocalEngine]:
    async with LocalEngine(model, max_len=2048, max_requests=8) as engine:
        dictated = ScriptedLocalEngine(engine, seed)
        context = RolloutContext(
            dictated, Chat(TOKENIZER), {"python": Asking()}, limits, SamplingParams(max_tokens=60), repair,
            strategy=Arpo(initial=1, probability=0.8) if branching else None,
            subcalls=SubcallLimits(depth=2, calls=12),
        )  # fmt: skip
        group = await rollout_group(TASK, context, count=GROUP, seed=seed, step=0, grade=lambda _, made: made)
        return group, dictated


def _check_samples(samples: Sequence[Sample], kept: Sequence[Trajectory], seed: int, found: Found) -> None:
    """Each node that can be trained has one sample, with all of its trained tokens."""
    expected = Counter[str]()
    for root in kept:
        for node, fate in node_fates(root, RECIPE.rl):
            if not fate:
                expected[node.id] = token_count(s for s in node.segments if s.kind in TRAINED)
    had = Counter[str]()
    for sample in samples:
        if sample.source in had:
            found.errors.append(f"seed {seed}: {sample.source} is trained twice")
        had[sample.source] += sum(sample.mask)
    found.trained += len(samples)
    if had != expected:
        found.errors.append(f"seed {seed}: trained tokens differ: {had - expected} {expected - had}")


def _check_scores(model: Qwen3ForCausalLM, node: Trajectory, seed: int, found: Found) -> None:
    ids = history_ids(node)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
    fresh = logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None]).squeeze(1).tolist()
    place = 0
    for segment in node.segments:
        if segment.kind in TRAINED:
            if segment.logprobs is None:
                found.errors.append(f"seed {seed}: {node.id} has tokens without log-probs")
                continue
            scored = fresh[place - 1 : place - 1 + len(segment.logprobs)]
            found.worst = max([found.worst, *(abs(a - b) for a, b in zip(segment.logprobs, scored, strict=True))])
        place += len(segment.ids or ())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, found, began, seed = small_model(), Found(), time.monotonic(), args.seed
    while found.trees < args.trees:
        check_trees(model, seed, found)
        seed += 1
    print(f"{found.trees} trees, {found.nodes} nodes, {found.trained} samples, {found.branches} branches, "
          f"{found.repaired} nodes with a repair, {time.monotonic() - began:.0f} s")  # fmt: skip
    print(f"children: {dict(found.fates)}; ends: {dict(found.stops)}")
    print(f"greatest difference of a log-prob: {found.worst:.1e} nats; lost or trained twice: {len(found.errors)}")
    print("\n".join(found.errors[:5]))
    return int(bool(found.errors) or found.worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
