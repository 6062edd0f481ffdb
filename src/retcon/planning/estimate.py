"""Training estimates from a model's sizes, here or in verl on GPUs.

verl is set up as in recipes/verl. CLEANER-4B takes 4.5 days by the formulas on 4 H100s, and 7B 1.8: the paper's took 4
and 2 (arXiv 2601.15141, appendix A).
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
from retcon.models.devices import VALUE_GPU, Placement, activation_bytes, kv_heads, torch_threads
from retcon.models.loading import load_config
from retcon.models.locating import CONFIG, fetch_files, is_unfetched, locate
from retcon.planning.needs import KEPT, Needs, Part, count_parameters, gib, kv_bytes

SHIPPED = Path(__file__).parents[1] / "assets" / "models.json"
USED = 7000 / 20480
"""Mean share of the response limit that rollouts use: CLEANER's (table 5)."""
OFFLOADED, OPTIMISER_OFFLOADED = 8, 32
"""Least numbers of GPUs that keep weights, and the optimiser, between updates (recipes/verl/launch.sh)."""
LOGIT = 8
"""Bytes of a logit in verl's update, with its log-softmax and gradients in float16: an estimate."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a device, in FLOP/s and bytes/s. memory: bytes, 0 for this machine."""

    name: str
    flops: float
    bandwidth: float
    devices: int = 1
    memory: int = 0


@contextmanager
def published(name: str) -> Iterator[Path]:
    """Yield a folder with the model's config.json: its own, the shipped one, or the hub's.

    Raises RecipeError for a model of the hub whose configuration is unavailable, CheckpointError as `locate`.
    """
    about, repo = json.loads(SHIPPED.read_bytes()), name.partition("@")[0]
    sizes = about["models"].get(about["of_one_size"].get(repo, repo))
    with TemporaryDirectory() as made:
        folder = Path(made)
        if not is_unfetched(name):
            folder = locate(name)
        elif sizes is not None:
            (folder / CONFIG).write_text(json.dumps(sizes), encoding="utf-8")
        else:
            try:
                folder = fetch_files(name, [CONFIG], cache=folder)
            except CheckpointError as error:
                unknown = f"{name} cannot be planned: its sizes are not shipped, and {str(error).split('. ')[0]}"
                raise RecipeError(f"{unknown}; give a folder with its config.json by --from") from error
        yield folder


def gpus_of(count: int, gigabytes: float) -> Speed:
    """Return GPUs of that size: H200s from 120 GB on, else H100s, at .4 and .6 of their data sheets' speed."""
    kind, bandwidth = ("H200", 4.8e12) if gigabytes >= 120 else ("H100", 3.35e12)
    return Speed(f"{gigabytes:g} GB, as fast as {kind}s", 0.4 * 989e12, 0.6 * bandwidth, count, int(gigabytes * 1e9))


def measure_speed(place: Placement) -> Speed:
    """Time a product and a copy where a training would compute; takes a few seconds."""
    size = 2048 if place.device == "cpu" else 8192
    x = torch.ones(size, size, dtype=getattr(torch, place.dtype), device=place.device)

    def seconds(work: Callable[[], torch.Tensor]) -> float:
        began = time.perf_counter()
        work()[:1].sum().item()  # a GPU is waited for
        return time.perf_counter() - began

    with torch.inference_mode(), torch_threads(place.threads):
        product, copy = (min(seconds(work) for _ in range(3)) for work in (lambda: x @ x, x.clone))
    return Speed(place.name, 2 * size**3 / product, 2 * x.nbytes / copy)


def needs_on_gpus(recipe: Recipe, folder: Path, gpus: Speed) -> Needs:
    """Return verl's use of each GPU and of the disk, without adapters.

    Raises RecipeError where a GPU does not hold the weights for decoding and one rollout.
    """
    config, count = load_config(folder), gpus.devices
    text, parameters = config.get_text_config(), count_parameters(config, recipe.lora)[0]
    tokens = max(recipe.compute.micro_batch_tokens, recipe.rollout.max_tokens)
    engine, each = int(gpus.memory * (0.5 if count == 1 else 0.6)), 2 * parameters
    kv = engine - each
    if kv < kv_bytes(text, 2) * (recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens):
        raise RecipeError(
            f"a GPU of {gib(gpus.memory)} does not hold the weights of rollouts ({gib(each)}) and the keys and values "
            "of one: take larger GPUs, or in verl actor_rollout_ref.rollout.tensor_model_parallel_size"
        )
    away = 8 * parameters * (count < OPTIMISER_OFFLOADED) + 4 * parameters * (count < OFFLOADED)
    about = f"one of {count} shards, float32"
    memory = (
        Part("weights", 4 * parameters // count, "update" if count < OFFLOADED else "always", about),
        Part("gradients", 4 * parameters // count, "update", about),
        Part("optimiser", 8 * parameters // count, "update" if count < OPTIMISER_OFFLOADED else "always",
             f"two moments; {gib(away)} lie in the hosts' memory between updates" if away else "two moments"),
        Part("activations", tokens * activation_bytes(text, recipe.compute.checkpointing, VALUE_GPU), "update",
             f"{tokens:,} tokens of a micro-batch"),
        Part("logits in verl", LOGIT * tokens * text.vocab_size, "update", "all of a micro-batch: an estimate"),
        Part("weights of rollouts", each, "rollouts", "float16, asleep during updates"),
        Part("KV blocks", kv, "rollouts", f"the rest of {gib(engine)} that vLLM is given"),
    )  # fmt: skip
    return Needs(memory, (KEPT + 1) * 12 * parameters, 0, parameters, parameters, gpus.name)


def step_seconds(recipe: Recipe, text: Any, needs: Needs, speed: Speed, tokens: float) -> tuple[float, float]:
    """Return the seconds of a step's rollouts and of its updates. tokens: mean length of trajectories.

    A forward has 2 FLOPs a parameter, and 4 a value of the queries for each of tokens / 2; a backward twice that.
    """
    rl, size = recipe.rl, kv_heads(text)[1]
    made = rl.prompts * recipe.select.made(rl.group) / speed.devices
    idle = (getattr(text, "num_experts", None) or 0) - getattr(text, "num_experts_per_tok", 0)
    expert = 3 * text.num_hidden_layers * text.hidden_size * getattr(text, "moe_intermediate_size", 0)
    active = needs.parameters - idle * expert
    forward = 2 * (active + text.num_hidden_layers * text.num_attention_heads * size * tokens)
    passes = (4 if recipe.compute.checkpointing else 3) * rl.epochs + (rl.old_logprobs == "recompute") + (rl.kl > 0)
    updates = rl.prompts * rl.group / speed.devices * tokens * forward * passes / speed.flops
    row = kv_bytes(text, 2) * tokens / 2
    kv = sum(part.bytes for part in needs.memory if part.name == "KV blocks")
    rows = max(1.0, min(made, kv / row))
    once = max((2 * needs.parameters + rows * row) / speed.bandwidth, rows * forward / speed.flops)
    return made * tokens / rows * once, updates
