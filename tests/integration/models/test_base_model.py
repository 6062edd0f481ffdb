"""The model inside the package, as its users load it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from retcon.basemodel.make import build_tokenizer, copied
from retcon.build import build_training_engine
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.load import load_recipe
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import TrainableEngine
from retcon.models.locating import BASE
from retcon.models.placing import start_model

pytestmark = pytest.mark.torch
TOKENIZER = load_tokenizer(BASE)


def test_it_is_small_and_loads_unchanged() -> None:
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 5_000_000
    model = AutoModelForCausalLM.from_pretrained(BASE)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.head_dim >= 32
    assert len(AutoTokenizer.from_pretrained(BASE)) == model.config.vocab_size


def test_it_copies() -> None:
    model = AutoModelForCausalLM.from_pretrained(BASE)
    assert copied(model, model.config.vocab_size) > 0.9


def test_its_tokenizer_is_the_one_that_the_recipe_makes() -> None:
    made = build_tokenizer().backend_tokenizer.to_str()
    assert made == AutoTokenizer.from_pretrained(BASE).backend_tokenizer.to_str()


@given(st.text(max_size=60))
def test_its_tokenizer_is_lossless(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_numbers_are_groups_of_up_to_three_digits() -> None:
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.encode("4821 7 56")] == ["482", "1", " ", "7", " ", "56"]


def test_its_chat_template_is_the_one_that_retcon_renders() -> None:
    question = "let x be the gcd of 12 and 18. find x to the power 2 mod 5."
    ids = AutoTokenizer.from_pretrained(BASE).apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    assert ids == [i for s in Chat(TOKENIZER).prompt(question) for i in s.ids or ()]


def test_it_can_be_trained_with_the_local_engine() -> None:
    engine = build_training_engine(load_recipe(None), start_model("base", 0), Chat(TOKENIZER), max_requests=4)
    assert isinstance(engine, LocalEngine)
    assert isinstance(engine, TrainableEngine)
    assert (engine.max_requests, engine.max_len) == (4, 480)
    engine.close()
