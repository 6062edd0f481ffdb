"""[run] threads, [compute] and [lora]: how and where a training computes, and which weights it trains."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from keys.acting import Lab, acts, run
from keys.rollouts import scripted
from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning, RecipeError
from retcon.models.placing import place_training
from retcon.train.rl import run_rl
from training import Graded


@contextmanager
def watched(kind: str, *, training: bool = True) -> Iterator[list[tuple[nn.Module, Any]]]:
    """(module, output) of every call of a module of this class, in training or in rollouts."""
    calls: list[tuple[nn.Module, Any]] = []

    def look(module: nn.Module, _: object, output: object) -> None:
        if type(module).__name__ == kind and torch.is_grad_enabled() == training:
            calls.append((module, output[0] if isinstance(output, tuple) else output))

    handle = register_module_forward_hook(look)
    try:
        yield calls
    finally:
        handle.remove()


def supervised_calls(recipe: Recipe, lab: Lab, kind: str) -> list[tuple[nn.Module, Any]]:
    with watched(kind) as calls:
        lab.supervised(recipe)
    return calls


@acts("run.threads", (1, {1}), (2, {2}))
def threads_of_a_run(recipe: Recipe, lab: Lab) -> set[int]:
    seen: set[int] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComputeWarning)  # on a single core
        tasks = Graded(rewards=((1.0, -1.0, -1.0, 1.0),))
        run_rl(recipe, lab.base, lab.out(), tasks=tasks, on_step=lambda _: seen.add(torch.get_num_threads()))
    return seen


@acts("compute.device", ("cpu", "cpu"), ("cuda:99", "compute.device = 'cuda:99'"))
def device_of_a_run(recipe: Recipe, lab: Lab) -> str:
    try:
        return place_training(recipe, lab.base).device
    except RecipeError as error:
        return str(error).partition(": ")[0]


@acts("compute.dtype", ("float32", {torch.float32}), ("bfloat16", {torch.bfloat16}))
def dtype_of_matrix_products(recipe: Recipe, lab: Lab) -> set[torch.dtype]:
    return {output.dtype for _, output in supervised_calls(recipe, lab, "Linear")}


@acts("compute.rollout_dtype", ("float32", False), ("bfloat16", True))
def rollouts_round_otherwise_than_training(recipe: Recipe, lab: Lab) -> bool:
    return lab.reinforced(recipe)[1][0]["mismatch_max"] > 1e-5


@acts("compute.attention", ("sdpa", {"sdpa"}), ("eager", {"eager"}))
def attention_of_the_model(recipe: Recipe, lab: Lab) -> set[str]:
    with watched("Qwen3Attention", training=False) as calls:
        lab.reinforced(recipe)
    return {module.config._attn_implementation for module, _ in calls}


@acts("compute.micro_batch_tokens", (1, 4), (10_000, 1), given=["compute.share_prompts=false"])
def forwards_of_four_samples(recipe: Recipe, lab: Lab) -> int:
    return len(supervised_calls(recipe, lab, "Qwen3Model"))


@acts("compute.checkpointing", (False, 1), (True, 2))
def times_that_a_layer_is_computed(recipe: Recipe, lab: Lab) -> int:
    return len(supervised_calls(recipe, lab, "Qwen3Attention"))


@acts("compute.share_prompts", (True, True), (False, False))
def ids_that_are_computed_once(recipe: Recipe, lab: Lab) -> bool:
    """Whether fewer ids are computed than there are in samples that begin alike."""
    with watched("Embedding") as calls:
        (line,) = lab.reinforced(recipe)[1]
    trained = sum(output.shape[:-1].numel() for _, output in calls)
    alone = line["rollouts"] * 16
    return trained < alone


class Widest(TorchDispatchMode):
    """ids × vocabulary of the widest softmax, and of all."""

    def __init__(self) -> None:
        super().__init__()
        self.widest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if "softmax" in func.__name__ or "logsumexp" in func.__name__:
            self.widest = max(self.widest, *(a.numel() for a in args if isinstance(a, Tensor)))
        return func(*args, **(kwargs or {}))


@acts("compute.logits_chunk", (2000, True), (1 << 24, False))
def logits_come_in_slices(recipe: Recipe, lab: Lab) -> bool:
    with Widest() as found:
        lab.supervised(recipe)
    return 0 < found.widest <= 2000


@acts("compute.kv_memory_mb", (1, 1 << 20), (3, 3 << 20))
def bytes_for_keys_and_values(recipe: Recipe, lab: Lab) -> int:
    async def opened() -> int:
        async with scripted(recipe, lab, []) as rollouts:
            return rollouts.engine.stats.kv_budget

    return run(opened())


def adapters(recipe: Recipe, lab: Lab) -> dict[str, Tensor]:
    return load_file(lab.supervised(recipe)[0] / "final/adapter/adapter_model.safetensors")


@acts("lora.rank", (2, {2}), (4, {4}))
def rank_of_the_adapters(recipe: Recipe, lab: Lab) -> set[int]:
    return {a.shape[0] for name, a in adapters(recipe, lab).items() if "lora_A" in name}


@acts("lora.alpha", (2.0, 1.0), (16.0, 8.0), given=["lora.rank=2"])
def scale_of_what_an_adapter_adds(recipe: Recipe, lab: Lab) -> float:
    """α / r, from what was added to a weight over B A."""
    layer = "model.layers.0.mlp.down_proj"
    found = {name.removeprefix("base_model.model."): tensor for name, tensor in adapters(recipe, lab).items()}
    before, after = (load_file(f / "model.safetensors") for f in (lab.base, lab.supervised(recipe)[0] / "final"))
    added = after[f"{layer}.weight"] - before[f"{layer}.weight"]
    return round(float(added.norm() / (found[f"{layer}.lora_B.weight"] @ found[f"{layer}.lora_A.weight"]).norm()), 2)


@acts("lora.dropout", (0.0, True), (0.5, False), given=["lora.rank=2"])
def adapters_are_those_of_no_dropout(recipe: Recipe, lab: Lab) -> bool:
    plain = adapters(recipe.model_copy(update={"lora": recipe.lora.model_copy(update={"dropout": 0.0})}), lab)
    return all(torch.equal(tensor, plain[name]) for name, tensor in adapters(recipe, lab).items())


@acts("lora.targets", (["q_proj"], ["q_proj"]), (["up_proj", "k_proj"], ["k_proj", "up_proj"]), given=["lora.rank=2"])
def layers_with_adapters(recipe: Recipe, lab: Lab) -> list[str]:
    config = json.loads((lab.supervised(recipe)[0] / "final/adapter/adapter_config.json").read_text(encoding="utf-8"))
    trained = {
        name.split(".")[-3] for name, tensor in adapters(recipe, lab).items() if "lora_B" in name and tensor.any()
    }
    assert trained == set(config["target_modules"])
    return sorted(trained)


@acts("run.seed", (0, True), (1, False), given=["lora.rank=2"])
def first_weights_of_adapters(recipe: Recipe, lab: Lab) -> bool:
    """Whether they are those of seed 0."""
    zero = adapters(recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": 0})}), lab)
    return all(torch.equal(t, zero[name]) for name, t in adapters(recipe, lab).items() if "lora_A" in name)
