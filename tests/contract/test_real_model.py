"""The local engine on a real language model, where one has been fetched: no test fetches anything."""

from __future__ import annotations

import asyncio

import pytest
import torch

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.models.catalogue import kept
from retcon.models.loading import load_model

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
    folder = kept(NAME)
    if not folder.is_dir():
        pytest.skip(f"{NAME} has not been fetched: retcon model get {NAME}")
    model = load_model(folder)
    chat = Chat(load_tokenizer(folder), system="You are a helpful AI assistant.")
    prompts = [[i for s in chat.prompt(question) for i in s.ids or ()] for question in QUESTIONS]

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=256)
        assert "lean" in engine.decoding
        greedy = SamplingParams(temperature=0, max_tokens=COUNT, stop_ids=chat.stop_ids)
        return await asyncio.gather(*(engine.generate(str(i), ids, greedy) for i, ids in enumerate(prompts)))

    for ids, generation in zip(prompts, asyncio.run(main()), strict=True):
        expected = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False,
                                  max_new_tokens=COUNT, eos_token_id=list(chat.stop_ids), pad_token_id=0)  # fmt: skip
        assert list(generation.ids) == expected[0, len(ids) :].tolist()
