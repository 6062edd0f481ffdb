"""What `step.py` has both sides do, and how it tells them to: no dependency but transformers.

A side is a process that says `{"versions": text}` once it is ready, and answers every line on its standard input with
one step and a line of JSON: `{"wall": seconds, "phases": {name: CPU seconds}}`.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, TextIO

from transformers import Qwen3Config

VOCAB, PROMPTS, GROUP, PROMPT_IDS, NEW_IDS, MICRO_BATCH = 2304, 16, 8, 48, 64, 32
"""A step: PROMPTS prompts of PROMPT_IDS ids, GROUP completions each of exactly NEW_IDS ids, MICRO_BATCH sequences at
once in training."""

LR = 1e-6


def model_config() -> Qwen3Config:
    """A Qwen3 of 4 layers, 256 wide: 3.9 M parameters."""
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=768,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
    )


def prompts(seed: int = 0) -> Iterator[list[int]]:
    """An endless stream of prompts, (PROMPT_IDS,) each."""
    draw = random.Random(seed)
    while True:
        yield [draw.randrange(VOCAB) for _ in range(PROMPT_IDS)]


def rewards(seed: int = 1) -> Iterator[float]:
    """An endless stream of rewards in [0, 1). No two are alike, so that every completion has an advantage: groups that
    have none would cost us nothing."""
    draw = random.Random(seed)
    while True:
        yield draw.random()


class Orders:
    """The other end of the driver's pipe. Whatever else the process prints goes to its standard error."""

    def __init__(self, *packages: str) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.answer({"versions": ", ".join(f"{name} {version(name)}" for name in packages)})

    def wait(self) -> bool:
        """Until a step is wanted; False where no more will be."""
        return bool(sys.stdin.readline())

    def answer(self, step: dict[str, Any]) -> None:
        print(json.dumps(step), file=self._out, flush=True)
