"""The local engine on a real language model, where one has been fetched: no test fetches anything."""

from __future__ import annotations

import asyncio

import pytest
import torch

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.models.loading import load_model
from retcon.models.locating import packaged_folder

pytestmark = [pytest.mark.torch, pytest.mark.slow]
NAME, COUNT = "smollm2-135m", 64
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python program that prints the squares of 1 to 10.",
    "Tom has 3 apples and buys 12 more. He eats 4. How many are left?",
    "Name three colours.",
    "Explain in two sentences why the sky is blue, to a child of seven who likes dinosaurs.",
    "2 + 2 =",
    "Translate to German: The weather is nice today.",
    "List the first 8 prime numbers, and say how you found them.",
)


def test_greedy_tokens_equal_transformers() -> None:
    """8 × 64 tokens. Each must be the one that transformers' forward, over all of the text at once, has for its
    position: the same demand as its `generate`, which computes token by token for a minute."""
    folder = packaged_folder(NAME)
    if not folder.is_dir():
        pytest.skip(f"{NAME} has not been fetched: retcon model get {NAME}")
    model = load_model(folder)
    chat = Chat(load_tokenizer(folder), system="You are a helpful AI assistant.")
    prompts = [[i for s in chat.prompt(question) for i in s.ids or ()] for question in QUESTIONS]

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=256)
        assert "fused" in engine.decoding
        greedy = SamplingParams(temperature=0, max_tokens=COUNT, stop_ids=chat.stop_ids)
        return await asyncio.gather(*(engine.generate(str(i), ids, greedy) for i, ids in enumerate(prompts)))

    for ids, generation in zip(prompts, asyncio.run(main()), strict=True):
        assert generation.stop == "stop" or len(generation.ids) == COUNT
        with torch.inference_mode():
            logits = model(torch.tensor([[*ids, *generation.ids[:-1]]])).logits[0, len(ids) - 1 :]
        assert list(generation.ids) == logits.argmax(-1).tolist()
