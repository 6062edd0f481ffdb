"""Sampling settings of TRL's trainer beside those of a recipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.load import load_recipe
from retcon.config.schema import RolloutSection
from retcon.core.errors import RecipeError
from retcon.plugins.trl import Rollouts, check_same_sampling

pytestmark = pytest.mark.torch


def config(**about: Any) -> Any:
    """TRL's GRPOConfig, of which these are the defaults."""
    defaults = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
        "generation_kwargs": None, "use_vllm": False, "vllm_importance_sampling_correction": True,
        "off_policy_mask_threshold": None,
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **about})


def rollout(*overrides: str) -> RolloutSection:
    return load_recipe("quickstart/saar", [f"rollout.{one}" for one in overrides]).rollout


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ([], {}),
        ([], {"use_vllm": True, "off_policy_mask_threshold": 0.5}),
        (["temperature=0.6"], {"temperature": 0.6}),
        (["top_p=0.9", "top_k=20", "min_p=0.1"], {}),
        (["top_p=0.9", "top_k=20", "min_p=0.1"], {"top_p": 0.9, "top_k": 20, "min_p": 0.1}),
    ],
)
def test_what_is_alike_or_not_set_is_taken(own: list[str], asked: dict[str, Any]) -> None:
    check_same_sampling(rollout(*own), config(**asked))


@pytest.mark.parametrize(
    ("own", "asked", "words"),
    [
        ([], {"temperature": 0.7}, r"temperature = 0.7 .*rollout\.temperature = 1\.0"),
        (["temperature=0.6"], {}, r"temperature = 1.0 .*rollout\.temperature = 0\.6"),
        ([], {"top_p": 0.9}, r"top_p = 0.9, .*rollout\.top_p = 1\.0"),
        (["top_p=0.8"], {"top_p": 0.9}, r"top_p = 0.9, .*rollout\.top_p = 0\.8"),
        ([], {"top_k": 20}, r"top_k = 20, .*rollout\.top_k = 0"),
        ([], {"min_p": 0.1}, r"min_p = 0.1, .*rollout\.min_p = 0\.0"),
        ([], {"repetition_penalty": 1.1}, r"repetition_penalty = 1.1"),
        ([], {"generation_kwargs": {"num_beams": 2}}, r"generation_kwargs = "),
        (["temperature=0.6"], {"temperature": 0.6, "off_policy_mask_threshold": 0.5}, "of temperature 1"),
        (["temperature=0.6"], {"temperature": 0.6, "use_vllm": True}, "of temperature 1"),
    ],
)
def test_rollouts_that_are_sampled_otherwise_than_asked_for_are_refused(
    own: list[str], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        check_same_sampling(rollout(*own), config(**asked))


def test_it_is_refused_before_any_rollout() -> None:
    with Rollouts("quickstart/saar", model="base") as rollouts, pytest.raises(RecipeError, match="temperature"):
        rollouts(["go"], SimpleNamespace(args=config(temperature=0.5)))
