"""Prompts and ends that TRL's trainer would take for others than they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecipeError
from retcon.plugins.trl import Rollouts, _question, check_turn_ends, prompt_of
from retcon.tasks.types import Task

pytestmark = pytest.mark.torch


def trainer_of(*ends: int) -> Any:
    return SimpleNamespace(eos_token_ids=list(ends), processing_class=SimpleNamespace(pad_token_id=0))


def test_a_row_of_a_task_that_was_not_drawn_is_refused() -> None:
    """Such as one of a data set that was kept: nobody would grade it."""
    task = Task("problems/1", "Who?", "Ada")
    with Rollouts("quickstart/saar", model="base") as rollouts:
        assert rollouts._task("Who?", None).id.startswith("prompt/")
        with pytest.raises(RecipeError, match=r"names the task 'problems/1', which .* `dataset`"):
            rollouts._task(*_question(prompt_of(task)))
        rollouts._know([task])
        assert rollouts._task(*_question(prompt_of(task))) == task


def test_behind_their_with_block_there_are_no_rollouts() -> None:
    with Rollouts("quickstart/saar", model="base") as rollouts:
        pass
    args = SimpleNamespace(temperature=rollouts.recipe.rollout.temperature, use_vllm=False)
    model = torch.nn.Linear(1, 1)
    accelerator = SimpleNamespace(unwrap_model=lambda one: one)
    with pytest.raises(RecipeError, match="closed: train within their `with` block"):
        rollouts(["go"], SimpleNamespace(args=args, model=model, accelerator=accelerator))
    assert model.training


def test_that_all_completions_would_be_masked_is_refused() -> None:
    tokenizer = ByteTokenizer()
    chat = Chat(tokenizer)
    check_turn_ends(chat, trainer_of(1, tokenizer.special_id("<|im_end|>")))
    with pytest.raises(RecipeError, match=r"mask_truncated_completions = True: turns end with '<.im_end.>'"):
        check_turn_ends(chat, trainer_of(tokenizer.special_id("<|endoftext|>")))
