"""What a trainer begins with, goes on from, and still has to take; and the torch settings of a run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors.torch import load_file
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import Recipe
from retcon.models.placing import place_training
from retcon.runs.folder import RunFolder
from retcon.train.kernels.forward import why_not_packed
from retcon.train.trainer import Trainer, Training
from training import make_base, small_recipe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("trainer") / "base")


def opened(recipe: Recipe, base: Path, out: Path) -> Trainer:
    betas = (0.8, 0.95)
    run = RunFolder(out)
    return Trainer(Training(run, recipe, place_training(recipe, base), base, recipe.rl, betas), lambda _: None)


def step(trainer: Trainer, **done: int) -> None:
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    trainer.done({"loss": 1.0}, **done)


def moments(trainer: Trainer) -> int:
    return sum("exp_avg" in state for state in trainer.optimizer.state.values())


def test_a_stage_has_its_own_decay_and_begins_anew_where_it_is_to(base: Path, tmp_path: Path) -> None:
    trainer = opened(small_recipe(base), base, tmp_path)
    step(trainer)
    there, section = moments(trainer), small_recipe(base, rl={"weight_decay": 0.3, "lr": 0.01}).rl
    assert there > 0
    for anew in (False, True):
        trainer.begin(section, anew=anew)
        matrices, others = trainer.optimizer.param_groups
        assert (matrices["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
        assert {(group["lr"], group["betas"]) for group in (matrices, others)} == {(0.01, (0.8, 0.95))}
        assert moments(trainer) == (0 if anew else there)


def test_a_session_goes_on_with_weights_moments_place_and_cost_of_the_one_before(base: Path, tmp_path: Path) -> None:
    recipe = small_recipe(base, rl={"checkpoint_every": 2}, compute={"attention": "eager"})
    first = opened(recipe, base, tmp_path)
    assert (first.step, first.drawn) == (0, [])
    attentions = {model.config._attn_implementation for model in (first.model, first.reference())}
    assert attentions == {"eager"}, "the reference as the policy"
    step(first, drawn=3, stage=2)
    step(first, drawn=4, stage=2)
    step(first, drawn=5, stage=3)  # of which there is no checkpoint
    about = json.loads((tmp_path / "checkpoints/step-000002/trainer.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert about["wall_s"] >= lines[1]["wall_s"] > 0
    lines[-1]["wall_s"] = about["wall_s"] + 700.0
    lines[-1]["cpu_s"] = about["cpu_s"] + 30.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = opened(recipe, base, tmp_path)
    assert (again.step, again.drawn) == (2, [0, 7])
    assert again.model.config._attn_implementation == "eager"
    assert moments(again) == moments(first)
    assert 700 <= again.cost.wall_s - about["wall_s"] < 800, "steps that are taken again were paid for"
    assert 30 <= again.cost.cpu_s - about["cpu_s"] < 130
    saved = load_file(tmp_path / "checkpoints/step-000002/model.safetensors")
    for name, tensor in saved.items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    assert [line["step"] for line in again.history()] == [1, 2]


def test_a_reference_is_what_the_training_started_from_whatever_it_has_become(base: Path, tmp_path: Path) -> None:
    recipe = small_recipe(base, rl={"checkpoint_every": 1})
    step(opened(recipe, base, tmp_path))
    again = opened(recipe, base, tmp_path)
    reference, start = again.reference().state_dict(), load_file(base / "model.safetensors")
    assert all(torch.equal(reference[name], tensor) for name, tensor in start.items())
    assert not any(p.requires_grad for p in again.reference().parameters())
    assert not all(torch.equal(again.model.state_dict()[name], tensor) for name, tensor in start.items())


def handler_within(trainer: Trainer) -> object:
    with trainer.interruptible():
        return signal.getsignal(signal.SIGINT)


def test_after_a_step_ctrl_c_does_what_it_did_before_and_in_a_thread_all_the_while(base: Path, tmp_path: Path) -> None:
    trainer = opened(small_recipe(base), base, tmp_path)

    def mine(*_: object) -> None:
        """A caller's own."""

    before = signal.signal(signal.SIGINT, mine)
    try:
        assert handler_within(trainer) is not mine
        assert signal.getsignal(signal.SIGINT) is mine
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(handler_within, trainer).result() is mine
    finally:
        signal.signal(signal.SIGINT, before)


# Models whose attention is more than what a packed row computes: each reason by itself.


SIZES = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 64}  # fmt: skip


def qwen() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16))


def test_scores_that_are_capped_or_of_no_scaled_dot_product_are_reported() -> None:
    model = qwen()
    assert why_not_packed(model, 60) is None
    model.config.attn_logit_softcapping = 50.0
    assert why_not_packed(model, 60) == "the attention of Qwen3ForCausalLM is more than a scaled dot product"
    model = qwen()
    model._supports_sdpa = False
    assert why_not_packed(model, 60) == "the attention of Qwen3ForCausalLM is more than a scaled dot product"


def test_layers_of_another_kind_are_reported_wherever_they_stand() -> None:
    model = qwen()
    model.config.layer_types = ["full_attention", "chunked_attention"]
    assert why_not_packed(model, 60) == "Qwen3ForCausalLM has chunked_attention layers"


def test_a_window_counts_where_the_model_does_not_say_which_layers_have_it() -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16))
    assert not getattr(model.config, "layer_types", None)
    assert why_not_packed(model, 16) is None
    assert why_not_packed(model, 17) == "MistralForCausalLM attends over a window of 16 tokens, and a sample has 17"
    model.config.sliding_window = None
    assert why_not_packed(model, 60) is None
