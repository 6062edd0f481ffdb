"""Estimates of a run's memory and disk from recipe and model configuration.

Nothing is loaded for it. The dry run, and the run itself before it writes anything, refuse a run that cannot fit.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from retcon.build import build_evaluation_repair, build_repair
from retcon.config.schema import LoraSection, Recipe
from retcon.core.errors import ComputeWarning, EngineError, RateWarning, RecipeError
from retcon.core.machine import available_memory, total_memory
from retcon.engine.kinds.local import LocalSection
from retcon.engine.local.attention import record_shapes
from retcon.engine.local.fused import copied_parameters
from retcon.engine.local.graphs import shared_rows
from retcon.engine.local.slabs import free_memory, kv_budget, resting_bytes, slot_capacity
from retcon.models.devices import LOGIT, Placement, activation_bytes, kv_heads, value_bytes
from retcon.models.loading import empty_model, load_config
from retcon.models.lora import Adapter
from retcon.runs.folder import RunKind

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Work = RunKind | Literal["eval"]
Phase = Literal["always", "rollouts", "update"]
MIB = 2**20
PROCESS = 450 * MIB
"""Bytes of Python, torch and transformers once imported, with their threads and allocators. An estimate: it grows with
the model, so that a peak can be somewhat above the forecast."""
TOKEN = 2400
"""Most bytes of a vocabulary token in the two copies of a tokenizer: 1,030 to 2,390 for four real models."""
KEPT = 2
"""Checkpoints kept at a time; three while a new one is written."""
ROWS = 256
"""Most rollouts decoded at a time (`build.MAX_REQUESTS`)."""

LINE_TOKEN = 45
"""Bytes of a kept rollout's line per token of its history and of one turn's lookaheads: the longest of 10 runs and
their evaluations had 32 without repairs and 42 with SAAR, where ids have up to four digits."""

SCORED_KEYS = 1024
"""Most keys for which a training in bfloat16 on a CPU keeps attention weights (`train.kernels.forward.SHORT`)."""
GRAPHS = 4
"""Most copies of all rollouts' last states, or logits, that CUDA graphs keep on a GPU: two for their outputs, of this
and of a smaller size, and two for their workspace. An estimate, not measured."""
DRAWN = 16
"""Extra bytes of a logit while an id is sampled on a GPU: four copies in float32. Not measured. A CPU samples few rows
at a time."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a run's memory. bytes: an upper bound, of the process an estimate. phase: when it is in use."""

    name: str
    bytes: int
    phase: Phase
    about: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory and disk of a run. memory: of the computing device. disk: most bytes of checkpoints and models in the run
    folder. rollouts: bytes of the kept rollouts, estimated at their longest. parameters, trained: counts."""

    memory: tuple[Part, ...]
    disk: int
    rollouts: int
    parameters: int
    trained: int
    device: str

    @property
    def peak(self) -> int:
        """Return the bytes at the peak. Rollouts and updates take turns: the larger of the two counts."""
        return self.of_phase("always") + self.of_phase(self.peak_phase)

    @property
    def peak_phase(self) -> Phase:
        """Return the phase that takes more: rollouts or updates."""
        return "update" if self.of_phase("update") >= self.of_phase("rollouts") else "rollouts"

    @property
    def least(self) -> int:
        """Return the bytes of `peak` without estimates (ESTIMATED)."""
        return self.peak - sum(part.bytes for part in self.memory if part.name in ESTIMATED)

    def of_phase(self, phase: Phase) -> int:
        """Sum the bytes of a phase's parts."""
        return sum(part.bytes for part in self.memory if part.phase == phase)


def needs_of(
    work: Work,
    recipe: Recipe,
    folder: Path,
    place: Placement,
    *,
    longest: int | None = None,
    reference: bool = False,
    least: int = 0,
) -> Needs:
    """Estimate the needs of `work`, without those of servers. folder: of the model. longest: tokens of its longest
    sample, None for a rollout's limit. reference: whether another stage of the run has a KL penalty, as this one may
    itself. least: tokens of a rollout that the engine must hold in any case, as evaluations on the way may be longer.
    Raises CheckpointError for a configuration that cannot be read or gives no model, RecipeError for a
    `compute.kv_memory_mb` that does not hold one rollout."""
    config = load_config(folder)
    text = config.get_text_config()
    parameters, trained = count_parameters(config, recipe.lora)
    wide = 2 if place.rollout_dtype != "float32" else 4
    rolls, trains = work in ("rl", "eval") and recipe.engine.in_process, work != "eval"
    cpu = place.device == "cpu"
    whole = max(least, recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens)
    # On a CPU, memory that this process uses already does not count as free.
    parts = [Part("process", PROCESS, "always", "Python and its packages, an estimate")] if cpu else []
    if cpu and (folder / "tokenizer.json").is_file():
        parts.append(Part("tokenizer", TOKEN * text.vocab_size, "always", f"{text.vocab_size:,} tokens, two copies"))
    if trains:
        parts.append(Part("weights", 4 * parameters, "always", f"{parameters / 1e6:,.1f} M parameters, float32"))
        copies = work == "rl" and (place.rollout_dtype != "float32" or recipe.lora.rank)
        if copies:
            parts.append(Part("weights of rollouts", wide * parameters, "always", place.rollout_dtype))
        if work == "rl" and (reference or recipe.rl.kl):
            parts.append(Part("reference", 4 * parameters, "always", "the model that rl.kl holds the trained one to"))
        parts.append(Part("optimiser", 8 * trained, "always", "two moments, float32"))
        parts.append(Part("gradients", 4 * trained, "update", "float32"))
        tokens = max(place.micro_batch_tokens, longest or (recipe.rollout.max_tokens if work == "rl" else 0))
        if place.dtype != "float32":
            multiplied = parameters if text.tie_word_embeddings else _linear(text, parameters)
            parts.append(Part("cast weights", 2 * multiplied, "update", f"{place.dtype}, as products read them"))
        whole_scores = cpu and place.dtype == "bfloat16"
        keys = min(SCORED_KEYS, longest or recipe.rollout.max_tokens) if whole_scores else 0
        each = activation_bytes(text, recipe.compute.checkpointing, value_bytes(place.device, place.dtype), keys)
        parts.append(Part("activations", tokens * each, "update", f"{tokens:,} tokens of a micro-batch"))
        logits = min(place.logits_chunk, tokens * text.vocab_size)
        parts.append(Part("logits", LOGIT * logits, "update", f"{logits / 1e6:,.1f} M at once, and their gradient"))
        if work == "rl" and recipe.rl.entropy_coefficient:
            parts.append(Part("entropies", LOGIT * logits, "update", "logits and probabilities, as many at once"))
    else:
        about = f"{parameters / 1e6:,.1f} M parameters, {place.rollout_dtype}"
        parts.append(Part("weights", wide * parameters, "always", about))
    if rolls:
        if recipe.compute.kv_memory_mb and isinstance(recipe.engine, LocalSection):
            _check_kv_budget(recipe, config, whole, wide)
        rows = _rows(work, recipe)
        kv = _kv_blocks(recipe, rows, whole, kv_bytes(text, wide), free_on(place.device))
        stay = min(kv.bytes, resting_bytes(torch.device(place.device))) if trains and not cpu else 0
        if stay:
            parts.append(replace(kv, bytes=stay, phase="always", about="at most, as they stay between steps"))
        if kv.bytes > stay:
            parts.append(replace(kv, bytes=kv.bytes - stay))
        if cpu:
            parts.append(Part("packed weights", wide * _linear(text, parameters), "rollouts", "as decoding reads them"))
        else:
            beside = copied_parameters(empty_model(config))
            if beside:
                parts.append(Part("weights side by side", wide * beside, "always", "as decoding reads them"))
            graphs = GRAPHS * wide * shared_rows(rows) * (text.hidden_size if beside else text.vocab_size)
            parts.append(Part("states of graphs", graphs, "always", "recorded forwards, which stay between steps"))
        drawn = (2 * wide + (0 if cpu else DRAWN)) * rows * text.vocab_size
        parts.append(Part("logits of rollouts", drawn, "rollouts", f"{rows} at once, and those after prompts"))
    disk = _disk(recipe, parameters, trained) if trains else 0
    return Needs(tuple(parts), disk, _kept_rollouts(work, recipe), parameters, trained, place.device)


def _rows(work: Work, recipe: Recipe) -> int:
    """Return the most rollouts decoded at a time."""
    if work != "rl":
        return ROWS
    return min(ROWS, recipe.rl.prompts * recipe.select.made(recipe.rl.group) * (1 + recipe.rl.max_staleness))


def _check_kv_budget(recipe: Recipe, config: PretrainedConfig, whole: int, wide: int) -> None:
    """Raise RecipeError where the budget does not hold one request of the local engine. Where the model cannot be run
    without weights, the engine itself checks. whole: tokens of the request. wide: bytes of a value."""
    try:
        kept = record_shapes(empty_model(config)).layers.values()
    except (EngineError, RuntimeError):
        return
    token = wide * (1 + sum(heads * (key + value) for heads, key, value in kept))
    least = -(-slot_capacity(whole, whole) * token // MIB)
    if recipe.compute.kv_memory_mb < least:
        raise RecipeError(
            f"compute.kv_memory_mb = {recipe.compute.kv_memory_mb}: one rollout of {whole:,} tokens "
            f"(rollout.max_tokens and rollout.lookahead_tokens) needs {least} MiB; set {least} or more, 0 for what is "
            "free, or fewer tokens"
        )


def _kv_blocks(recipe: Recipe, rows: int, whole: int, token: int, free: int | None) -> Part:
    """Return the budget of the local engine, all of which it may use: blocks that requests outgrow are kept for reuse.
    whole: tokens of a rollout at its longest. token: bytes of one. free: bytes on the device, None if unknown."""
    if recipe.compute.kv_memory_mb:
        return Part("KV blocks", recipe.compute.kv_memory_mb * MIB, "rollouts", "compute.kv_memory_mb")
    request = slot_capacity(whole, whole) * token
    held = 2 * rows * request
    about = f"room for twice {rows} rollouts of {whole:,} tokens"
    kv = held if free is None else kv_budget(request, rows, free)
    return Part("KV blocks", kv, "rollouts", about if kv == held else f"{about}, cut to a quarter of what is free")


ESTIMATED = ("tokenizer", "activations", "logits", "logits in verl", "entropies", "KV blocks", "states of graphs",
             "logits of rollouts")  # fmt: skip
"""Parts with a bound by formula, above measurements of small models
(`tests/integration/train/test_memory.py`), and parts that can do with less."""


def check_memory_fits(needs: Needs, of: object = "this", free: int | None = None) -> None:
    """Raise RecipeError where the device's memory is too small. The error names the largest part, and which key makes
    it smaller; if only estimates (ESTIMATED) exceed the memory, it is a ComputeWarning. of: subject of the message,
    such as a stage. free: bytes, None for this machine's."""
    free = free or free_on(needs.device)
    if free is not None and needs.peak > free:
        message = _describe_shortage(needs, of, f"{gib(free)} are free on {needs.device}")
        if needs.least > free:
            raise RecipeError(message)
        warnings.warn(message, ComputeWarning, stacklevel=3)


def check_fits(needs: Needs, out: Path, of: object = "this") -> None:
    """Check memory and the disk of `out`, which need not exist yet. Kept rollouts are the disk's estimate. A finished
    run needs nothing; one that goes on has most of its disk already."""
    if (out / "final").is_dir():
        return
    check_memory_fits(needs, of)
    _check_disk(needs, out)


def check_fits_later(needs: Needs, out: Path, of: object = "this") -> None:
    """Check the device's whole memory, and the disk, for a later run. Memory that others use may be free by then."""
    whole = memory_of(needs.device)
    if needs.least > whole:
        raise RecipeError(_describe_shortage(needs, of, f"{needs.device} has {gib(whole)}"))
    _check_disk(needs, out)


def _describe_shortage(needs: Needs, of: object, room: str) -> str:
    largest = max((p for p in needs.memory if p.phase in ("always", needs.peak_phase)), key=lambda part: part.bytes)
    return (
        f"{of} takes up to {gib(needs.peak)} of memory and {room}: most of it is "
        f"{largest.name} ({gib(largest.bytes)}; {largest.about}). "
        f"{_advice(largest.name, trains=needs.disk > 0)}; --dry-run shows every part"
    )


def _check_disk(needs: Needs, out: Path) -> None:
    there = next(p for p in (out, *out.absolute().parents) if p.exists())
    room = shutil.disk_usage(there).free
    if (out / "run.json").is_file():
        return
    if needs.disk > room:
        raise RecipeError(
            f"{out} would take up to {gib(needs.disk)} of disk and {gib(room)} are free there: make room, or choose "
            "another --out; with lora.rank checkpoints hold adapters alone"
        )
    if needs.disk + needs.rollouts > room:
        warnings.warn(
            f"{out} could take {gib(needs.disk + needs.rollouts)} of disk, {gib(needs.rollouts)} of them for rollouts, "
            f"and {gib(room)} are free there: make room, or choose another --out",
            ComputeWarning,
            stacklevel=3,
        )


def _advice(part: str, *, trains: bool) -> str:
    if part in ("states of graphs", "logits of rollouts") and not trains:
        return "Take a smaller model, or free memory there"
    return {
        "KV blocks": "Lower rollout.max_tokens, rl.prompts, or set compute.kv_memory_mb",
        "activations": "Lower compute.micro_batch_tokens or rollout.max_tokens, or set compute.checkpointing = true",
        "logits": "Lower compute.logits_chunk",
        "logits in verl": "Set actor_rollout_ref.model.use_fused_kernels=true, or take larger GPUs",
        "entropies": "Lower compute.logits_chunk",
        "states of graphs": "Lower rl.prompts or rl.group",
        "logits of rollouts": "Lower rl.prompts or rl.group",
        "optimiser": "Train adapters (lora.rank = 16) or a smaller model",
        "gradients": "Train adapters (lora.rank = 16) or a smaller model",
    }.get(part, "Take a smaller model")


def free_on(device: str) -> int | None:
    """Return the free bytes of a device, None if unknown."""
    if device.startswith("cuda"):
        return free_memory(torch.device(device))
    return available_memory()


def memory_of(device: str) -> int:
    """Return all bytes of a device, free or not."""
    return int(torch.cuda.mem_get_info(torch.device(device))[1]) if device.startswith("cuda") else total_memory()


def count_parameters(config: PretrainedConfig, lora: LoraSection) -> tuple[int, int]:
    """Count all parameters and the trained ones."""
    model = empty_model(config)
    whole = sum(p.numel() for p in model.parameters())
    if lora.rank:
        Adapter(model, lora, seed=0)
    return whole, sum(p.numel() for p in model.parameters() if p.requires_grad)


def _linear(text: Any, parameters: int) -> int:
    """Count the parameters without the embedding."""
    return max(0, parameters - int(text.vocab_size * text.hidden_size))


def kv_bytes(text: Any, wide: int) -> int:
    """Return a token's KV bytes, its place in the mask included."""
    heads, size = kv_heads(text)
    return int((1 + text.num_hidden_layers * 2 * heads * size) * wide)


def _disk(recipe: Recipe, parameters: int, trained: int) -> int:
    """Return the bytes of checkpoints with their optimiser, and of the final model."""
    checkpoint = 4 * (trained if recipe.lora.rank else parameters) + 8 * trained
    return (KEPT + 1) * checkpoint + 4 * parameters


def _kept_rollouts(work: Work, recipe: Recipe) -> int:
    """Return the bytes of the rollouts of a training's kept steps, or of an evaluation's two settings and an unfinished
    one. Each counts at its longest, with all attempts of one repair."""
    if work not in ("rl", "eval"):
        return 0
    if work == "rl":
        repair = build_repair(recipe)
        groups = recipe.rl.prompts * (1 + recipe.select.max_extra * recipe.select.dynamic)
        steps = min(recipe.rl.steps, 2 + recipe.rl.steps // 10)
        count = int(steps * groups * recipe.select.made(recipe.rl.group))
    else:
        repair = build_evaluation_repair(recipe)
        count = 3 * recipe.evaluate.problems * recipe.evaluate.samples
    attempts = 0 if repair is None else repair.attempts
    return count * LINE_TOKEN * (recipe.rollout.max_tokens + attempts * recipe.rollout.lookahead_tokens)


def gib(count: int) -> str:
    """Format bytes: `1.23 GiB`, `345 MiB`."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / MIB:,.0f} MiB"


def table(parts: Sequence[Part]) -> list[tuple[str, str, str]]:
    """Return (name, size, about) of each part."""
    when = {"always": "", "rollouts": "during rollouts", "update": "during updates"}
    return [(p.name, gib(p.bytes), "; ".join(t for t in (p.about, when[p.phase]) if t)) for p in parts]


LARGE = 50_000_000
"""Parameters from which a learning rate is checked. The defaults suit the packaged model of 0.7 M: ten steps of SFT at
4e-3 destroy the English of one of 135 M (`benchmarks/studies/rates.py`)."""
ADAPTERS = 10
"""Factor of the learning rate that adapters tolerate, compared with all weights, about."""


@dataclass(frozen=True, slots=True)
class UsualRate:
    """Usual learning rate of a kind of run. most: warn above it. take: a safe one. known: published rates."""

    most: float
    take: float
    known: str


USUAL: Mapping[RunKind, UsualRate] = {
    "sft": UsualRate(5e-4, 1e-5, "rstar2-14b/sft has 5e-6, smollm2/cold_start (135 M) 4e-4"),
    "dpo": UsualRate(2e-5, 1e-6, "its paper, arXiv 2305.18290, has 1e-6"),
    "rl": UsualRate(2e-5, 2e-6, "the recipes of papers on 3 to 32 B have 1e-6 to 2e-6, smollm2/saar (135 M) 1e-5"),
}


def count_stored_parameters(folder: Path) -> int:
    """Count a model's parameters by the shapes in its safetensors; 0 without any."""
    count = 0
    for file in folder.glob("model*.safetensors"):
        unread = (OSError, ValueError, LookupError, TypeError, RecursionError)  # the run will say so
        with suppress(*unread), file.open("rb") as opened:
            length = min(int.from_bytes(opened.read(8), "little"), file.stat().st_size)
            tensors = dict(json.loads(opened.read(length)))
            count += sum(prod(about["shape"]) for name, about in tensors.items() if name != "__metadata__")
    return count


def warn_of_rate(kind: RunKind, recipe: Recipe, parameters: int) -> None:
    """Warn (RateWarning) of a learning rate too high for the model's size."""
    usual, lr = USUAL[kind], getattr(recipe, kind).lr
    times = ADAPTERS if recipe.lora.rank else 1
    if parameters < LARGE or lr <= times * usual.most:
        return
    adapters = f", and adapters bear some {ADAPTERS} times more" if recipe.lora.rank else ""
    warnings.warn(
        f"{kind}.lr = {lr:g} is high enough to ruin a model of {parameters / 1e6:,.0f} M parameters: {usual.known}"
        f"{adapters}; set {kind}.lr={times * usual.take:g}",
        RateWarning,
        stacklevel=2,
    )
