"""Keys of a recipe that do not go with each other, and numbers that cannot be: refused before any work."""

from __future__ import annotations

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("rl.imitate_spliced=0.5", "rl.mask_negative_spliced=true", "exclude each other"),
        ("rl.sdpo=1.0", "rl.blame=0.5", "sdpo and blame both decide"),
        ("rl.sdpo=1.0", "rl.failed_calls=mask", "sdpo and failed_calls = mask both decide"),
        ("rl.step_advantage=rtmc", "rl.blame=0.5", "step_advantage = rtmc and blame both give"),
        ("rl.sdpo=1.0", "rl.shared_advantage=mean", "which shared_advantage = mean averages"),
        ("rl.blame=0.5", "rl.failed_calls=mask", "blame teaches from the turns that failed_calls = mask leaves out"),
        ("rl.schedule=cosine", "rl.max_sampled_tokens=100", "schedule = cosine falls over all of rl.steps"),
        ("rl.schedule=linear", "rl.max_cpu_seconds=100", "schedule = linear falls over all of rl.steps"),
        ("engine.kind=scripted", "rl.max_staleness=1", "max_staleness = 1 needs an engine that goes on with"),
        ("rollout.max_tokens=100", "rl.overlong_buffer=100", "must be less than rollout.max_tokens = 100"),
        ("model.style=qwen", "model.thinking=on", "is not used with style = 'qwen'"),
    ],
)
def test_keys_that_do_not_go_together_are_refused_and_each_alone_is_not(first: str, second: str, said: str) -> None:
    for alone in (first, second):
        load_recipe(None, [alone])
    with pytest.raises(RecipeError, match=said):
        load_recipe(None, [first, second])


def test_an_error_names_the_override_that_it_is_about() -> None:
    with pytest.raises(RecipeError, match=r"'rollout\.foo=3': unknown key 'foo'|'rl\.steps=x': rl\.steps = "):
        load_recipe(None, ["rl.steps=x", "rollout.foo=3"])


def test_a_correction_needs_log_probs_to_weigh_against() -> None:
    load_recipe(None, ["rl.correction=token_mask", "rl.old_logprobs=recompute"])
    with pytest.raises(RecipeError, match="it needs old_logprobs = recompute"):
        load_recipe(None, ["rl.correction=token_mask"])


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("rollout.temperature", 0.0, -0.1), ("rollout.top_p", 1.0, 95.0), ("rollout.top_p", 0.01, 0.0),
        ("rollout.min_p", 1.0, 1.01), ("rollout.max_tokens", 1, 0), ("evaluate.top_p", 1.0, 95.0),
        ("evaluate.top_p", 0.01, 0.0), ("evaluate.samples", 1, 0), ("evaluate.faults", 1.0, 10.0),
        ("repair.probability", 1.0, 50.0), ("select.max_pass_rate", 1.0, 99.0), ("sandbox.cpu_seconds", 0.1, 0.0),
        ("sandbox.memory_mb", 1, 0), ("lora.dropout", 0.99, 1.0), ("sft.lr", 1e-9, 0.0), ("sft.warmup", 1.0, 10.0),
        ("sft.validation_share", 0.99, 1.0), ("dpo.beta", 1e-9, 0.0), ("rl.lr", 1e-9, 0.0), ("rl.kl", 0.0, -0.1),
        ("rl.max_grad_norm", 1e-9, 0.0), ("rl.drift_alarm", 1.0, 5.0),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused_by_name(key: str, good: float, bad: float) -> None:
    """A share that is written in per cent among them."""
    section, _, name = key.partition(".")
    assert getattr(getattr(load_recipe(None, [f"{key}={good}"]), section), name) == good
    with pytest.raises(RecipeError, match=rf"{key} = {bad:g}.* is not allowed: input should be"):
        load_recipe(None, [f"{key}={bad}"])
