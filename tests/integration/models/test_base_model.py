"""The model inside the package, as its users load it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.models.locating import BASE
from training import build_tokenizer

pytestmark = pytest.mark.torch
TOKENIZER = load_tokenizer(BASE)


def test_it_is_small_and_loads_unchanged() -> None:
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 5_000_000
    model = AutoModelForCausalLM.from_pretrained(BASE)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.head_dim >= 32
    assert len(AutoTokenizer.from_pretrained(BASE)) == model.config.vocab_size


def test_its_tokenizer_is_the_one_that_the_recipe_makes() -> None:
    made = build_tokenizer().backend_tokenizer.to_str()
    assert made == AutoTokenizer.from_pretrained(BASE).backend_tokenizer.to_str()


@given(st.text(max_size=60))
def test_its_tokenizer_is_lossless(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_its_chat_template_is_the_one_that_retcon_renders() -> None:
    question = "let x be the gcd of 12 and 18. find x to the power 2 mod 5."
    ids = AutoTokenizer.from_pretrained(BASE).apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    assert ids == [i for s in Chat(TOKENIZER).prompt(question) for i in s.ids or ()]
