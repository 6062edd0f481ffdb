"""Plan a training from a model's published configuration: without weights or data, by formula.

The training is by this process, or by verl on GPUs, as recipes/verl sets it up. The formulas give 4.5 days for
CLEANER-4B on 4 H100s and 1.8 for CLEANER-7B; its paper reports 4 and 2 (arXiv 2601.15141, appendix A).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, RecipeError
from retcon.models.devices import VALUE_GPU, Placement, activations, kv_heads, torch_threads
from retcon.models.hub import CONFIG, fetch_config
from retcon.models.loading import load_config
from retcon.models.locating import is_unfetched, locate
from retcon.planning.needs import KEPT, Needs, Part, count_parameters, kv_bytes

SHIPPED = Path(__file__).parents[1] / "assets" / "models.json"
USED = 7000 / 20480
"""Mean share of their response limit that rollouts use: CLEANER's (table 5)."""
OFFLOADED, OPTIMISER_OFFLOADED = 8, 32
"""GPUs from which weights, and the optimiser, stay on them (recipes/verl/launch.sh)."""
OF_PEAK_FLOPS, OF_PEAK_BANDWIDTH = 0.4, 0.6
"""Shares of a data sheet's numbers that training and decoding get, about."""
LOGIT = 8
"""Bytes of a logit in verl's update: in float16 itself, its log-softmax, its gradient, and one more. Not measured."""
CUDA = 2 * 2**30
"""Bytes that CUDA, NCCL and torch take on a GPU: an estimate."""


@dataclass(frozen=True, slots=True)
class Speed:
    """flops, bandwidth: FLOP and bytes of memory that one of the devices does in a second."""

    name: str
    flops: float
    bandwidth: float
    devices: int = 1


@contextmanager
def published(name: str) -> Iterator[Path]:
    """Give a folder that has the model's config.json, for a while: its own, the one shipped, or the hub's.

    Raises RecipeError for a model of the hub whose configuration is not to be had, CheckpointError as `locate`.
    """
    if not is_unfetched(name):
        yield locate(name)
        return
    about, repo = json.loads(SHIPPED.read_bytes()), name.partition("@")[0]
    sizes = about["models"].get(about["of_one_size"].get(repo, repo))
    with TemporaryDirectory() as made:
        folder = Path(made)
        if sizes is None:
            try:
                folder = fetch_config(name, folder)
            except CheckpointError as error:
                raise RecipeError(
                    f"{name} cannot be planned: no configuration of it is shipped, and {str(error).split('. ')[0]}; "
                    "give a model folder, or one with its config.json alone, by --from"
                ) from error
        else:
            (folder / CONFIG).write_text(json.dumps(sizes), encoding="utf-8")
        yield folder


def gpus_of(count: int, gigabytes: float) -> Speed:
    """Return the speed of GPUs with so much memory: H200s from 120 GB on, else H100s (SXM, by their data sheets)."""
    name, bandwidth = ("H200", 4.8e12) if gigabytes >= 120 else ("H100", 3.35e12)
    return Speed(name, OF_PEAK_FLOPS * 989e12, OF_PEAK_BANDWIDTH * bandwidth, count)


def measure_speed(place: Placement) -> Speed:
    """Time a product and a copy where a training would compute; takes under a second."""
    device, size = torch.device(place.device), 1024 if place.device == "cpu" else 8192

    def seconds(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(4):
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - began)
        return best

    with torch.inference_mode(), torch_threads(place.threads):
        x = torch.ones(size, size, dtype=getattr(torch, place.dtype), device=device)
        large = torch.ones(2**24, device=device)
        flops = 2 * size**3 / seconds(lambda: x @ x)
        return Speed(place.name, flops, 8 * large.numel() / seconds(large.clone))


def needs_on_gpus(recipe: Recipe, folder: Path, count: int, gigabytes: float) -> Needs:
    """Return what verl takes of each of `count` GPUs, and of the disk.

    Raises RecipeError where a GPU does not hold the weights that its engine decodes with.
    """
    config = load_config(folder)
    text = config.get_text_config()
    parameters, trained = count_parameters(config, recipe.lora)
    tokens = max(recipe.compute.micro_batch_tokens, recipe.rollout.max_tokens)
    engine, each = int(gigabytes * 1e9 * (0.5 if count == 1 else 0.6)), 2 * parameters
    kv = engine - each
    if kv < kv_bytes(text, 2) * (recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens):
        raise RecipeError(
            f"a GPU of {gigabytes:g} GB does not hold the weights of rollouts ({each / 1e9:,.0f} GB) and the keys and "
            "values of one: take larger GPUs, or in verl actor_rollout_ref.rollout.tensor_model_parallel_size"
        )
    shard = f"of {count}, float32" if count > 1 else "float32"
    value = activations(text, recipe.compute.checkpointing, VALUE_GPU)
    memory = (
        Part("process", CUDA, "always", "CUDA and its libraries, an estimate"),
        Part("weights", 4 * parameters // count, "update" if count < OFFLOADED else "always", f"a shard {shard}"),
        Part("gradients", 4 * trained // count, "update", f"a shard {shard}"),
        Part("optimiser", 8 * trained // count, "update" if count < OPTIMISER_OFFLOADED else "always", "two moments"),
        Part("gathered weights", 4 * text.vocab_size * text.hidden_size, "update", "two units of FSDP2, float16"),
        Part("activations", tokens * value, "update", f"{tokens:,} tokens of a micro-batch"),
        Part("logits", LOGIT * tokens * text.vocab_size, "update", "all of a micro-batch: an estimate"),
        Part("weights of rollouts", each, "rollouts", "float16, asleep during updates"),
        Part("KV blocks", kv, "rollouts", f"the rest of {engine / 1e9:,.0f} GB that vLLM is given"),
    )
    return Needs(memory, (KEPT + 1) * (4 * parameters + 8 * trained), 0, parameters, trained, f"{gigabytes:g} GB")


def host_bytes(needs: Needs, count: int) -> int:
    """Return the memory of the hosts that verl's offloaded weights and optimiser take."""
    optimiser = 8 * needs.trained if count < OPTIMISER_OFFLOADED else 0
    return optimiser + (4 * needs.parameters if count < OFFLOADED else 0)


def step_seconds(recipe: Recipe, text: Any, needs: Needs, speed: Speed, tokens: float) -> tuple[float, float]:
    """Return the seconds of a step's rollouts, and of its updates, where trajectories have `tokens` tokens.

    A forward of a token takes 2 FLOPs a parameter and 4 a value of the queries for each token that it attends to; a
    backward twice that. Decoding reads weights and keys and values once a token.
    """
    rl, (_, size) = recipe.rl, kv_heads(text)
    made = rl.prompts * recipe.select.made(rl.group)
    active, experts = needs.parameters, getattr(text, "num_experts", 0) or 0
    if experts:
        idle = experts - text.num_experts_per_tok
        active -= 3 * text.num_hidden_layers * idle * text.hidden_size * text.moe_intermediate_size
    attended = 2 * text.num_hidden_layers * text.num_attention_heads * size * tokens  # half of the tokens, in the mean
    forward = 2 * active + attended
    passes = (4 if recipe.compute.checkpointing else 3) * rl.epochs + (rl.old_logprobs == "recompute") + (rl.kl > 0)
    updates = rl.prompts * rl.group * tokens * forward * passes / (speed.flops * speed.devices)
    kv = sum(part.bytes for part in needs.memory if part.name == "KV blocks")
    row = kv_bytes(text, 2) * tokens / 2
    rows = max(1.0, min(made / speed.devices, kv / row))
    once = max((2 * needs.parameters + rows * row) / speed.bandwidth, rows * forward / speed.flops)
    return made * tokens / speed.devices / rows * once, updates
