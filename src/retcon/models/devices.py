"""Choice of a run's device, precision and threads.

A training step's settings follow from it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn import functional

from retcon.config.schema import ComputeSection
from retcon.core.errors import RecipeError
from retcon.core.machine import usable_cores
from retcon.models.loading import empty_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig


# OpenMP's threads spin for milliseconds between torch's operations. On shared cores the awaited thread cannot run
# meanwhile, and decoding takes ten times the CPU time. `OMP_WAIT_POLICY=PASSIVE`, which the commands set, ends that. It
# is read when torch is loaded, which in programs that import Retcon may have happened before.

DECIDED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables with which a user chooses how threads wait."""


def disable_openmp_spin() -> None:
    """Stop OpenMP's threads in this process from spinning while they wait.

    Does nothing if the user has chosen (DECIDED), or for an unknown OpenMP library.
    """
    if any(name in os.environ for name in DECIDED):
        return
    for path in _openmp_libraries():
        name = Path(path).name
        if name.startswith("libgomp"):
            _oversubscribe_libgomp(path)
        elif hasattr(library := ctypes.CDLL(path), "kmp_set_blocktime"):
            library.kmp_set_blocktime(0)


@functools.cache
def _oversubscribe_libgomp(path: str) -> None:
    """Oversubscribe GNU's OpenMP, which has no setting once it is loaded.

    With more OpenMP threads than cores it spins 100 times, not 300,000 (its manual, on GOMP_SPINCOUNT). So a team of as
    many threads as cores runs `free(NULL)` and sleeps for good.
    """
    library, work = ctypes.CDLL(path), ctypes.CDLL(None).free
    made = threading.Event()

    def sleep() -> None:
        library.GOMP_parallel(work, None, ctypes.c_uint(usable_cores()), ctypes.c_uint(0))
        made.set()
        threading.Event().wait()  # the team lives as long as this thread

    threading.Thread(target=sleep, name="retcon-openmp", daemon=True).start()
    made.wait()


def _openmp_libraries() -> Iterator[str]:
    """Yield the paths of this process's OpenMP libraries."""
    maps = Path("/proc/self/maps")
    lines = os.fsdecode(maps.read_bytes()).split("\n") if maps.is_file() else []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/") and len(line.split()) > 5)
    return (p for p in paths if Path(p).name.startswith(("libgomp", "libiomp5", "libomp")))


TrainDtype = Literal["float32", "bfloat16"]
RolloutDtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager"]
BF16_TRAINS, BF16_DECODES = 64, 256
"""Widths from which bfloat16 is quicker on a CPU whose products are quicker in it (docs/training/compute.md)."""
QUICKER, SLOWER = 1.3, 0.8
"""Speeds of bfloat16, relative to float32, from which it is advised, and below which it is advised against."""
ROUNDS, ROWS, SIZE = 5, 256, 512
"""Sizes of the products that `bfloat16_speed` times."""
DTYPES = torch.float32, torch.bfloat16
TOKENS, TOKENS_GPU = 2048, 16384
"""Default padded ids of a micro-batch: what suits a CPU's cache, and the most on a GPU, where they are halved until
they fit, down to a CPU's."""
CHUNK, CHUNK_GPU = 1 << 24, 1 << 28
"""Default logits that exist at once; on a GPU as many as fit in LOGITS of its memory."""
ACTIVATIONS, FILLED, LOGITS = 0.4, 0.85, 0.05
"""Shares of a GPU's memory for activations, for these and the model, and for logits."""
HELD, HELD_FROZEN, REFERENCE = 22, 10, 4
"""Bytes of a parameter during an update: weights, gradients and two moments in float32, and copies in bfloat16 for
products, for rollouts, and of their fused layers; with adapters only the weights and these copies; of a reference
model."""
LOGIT = 12
"""Bytes of a logit in a step: float32, its gradient, and one more copy."""
VALUE = {"float32": 4.0, "bfloat16": 2.75}
"""Mean bytes of an activation on a CPU, where norms and their inputs stay float32."""
VALUE_GPU = 3.0
"""In bfloat16 on a GPU, where norms keep more: an H100 took .9 of it for SmolLM2-135M's shape, .7 to 1.1 for
Qwen3-0.6B's."""
PAGE = "docs/training/compute.md"
CPUINFO = Path("/proc/cpuinfo")
CROWDED = 3
"""Most threads and sandbox workers per core. Workers mostly wait."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device. bf16: whether it has bfloat16 units. memory: total bytes."""

    name: str
    bf16: bool
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine. bf16_speed: see `bfloat16_speed`. cores: usable by this process. gpus: by index."""

    cpu: str
    bf16_speed: float
    cores: int
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a run computes.

    dtype: of a training step's products. rollout_dtype: of the weights in rollouts. name: of the CPU or GPU. hints:
    what the recipe could gain. micro_batch_tokens, logits_chunk: see `Computing`.
    """

    device: str
    dtype: TrainDtype
    rollout_dtype: RolloutDtype
    attention: Attention
    threads: int
    name: str
    hints: tuple[str, ...] = ()
    micro_batch_tokens: int = TOKENS
    logits_chunk: int = CHUNK

    @property
    def line(self) -> str:
        threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}" if self.device == "cpu" else ""
        return (
            f"computing on {self.device} ({self.name}{threads}), {self.dtype}, rollouts {self.rollout_dtype}, "
            f"{self.attention} attention"
        )


OnPlace = Callable[[Placement], None]
Use = Literal["dtype", "rollout_dtype"]
"""Keys that a command uses: it trains, it rolls out."""
USES: tuple[Use, ...] = ("dtype", "rollout_dtype")


def choose(
    section: ComputeSection,
    config: PretrainedConfig,
    machine: Machine,
    *,
    threads: int,
    uses: Sequence[Use] = USES,
    held: int = HELD,
) -> Placement:
    """Choose the placement of `section` on `machine`. held: bytes per parameter during an update.

    Raises RecipeError for an unavailable device, dtype or attention.
    """
    device, gpu = _device(section.device, machine)
    auto: TrainDtype = "bfloat16" if gpu is not None and gpu.bf16 else "float32"
    dtype = auto if section.dtype == "auto" else section.dtype
    rollouts: RolloutDtype = auto if section.rollout_dtype == "auto" else section.rollout_dtype
    for key, name in {"dtype": dtype, "rollout_dtype": rollouts}.items():
        if not supports_dtype(device, getattr(torch, name)):
            raise RecipeError(f"compute.{key} = {name!r}: torch cannot compute in {name} on {device}; use 'float32'")
    return Placement(
        device,
        dtype,
        rollouts,
        _attention(section.attention, config),
        threads,
        machine.cpu if gpu is None else gpu.name,
        _hints(section, config, machine, uses) if gpu is None else (),
        section.micro_batch_tokens or _tokens(section, config, dtype, gpu if "dtype" in uses else None, held),
        section.logits_chunk or _chunk(gpu),
    )


def supports_dtype(device: str, dtype: torch.dtype) -> bool:
    """Return whether a device runs a transformer layer's operations in a dtype."""
    try:
        x = torch.ones(2, 4, 8, device=device).to(dtype)
        x = functional.layer_norm(functional.silu(functional.linear(x, x[0, :, :].T @ x[0])), (8,))
        functional.scaled_dot_product_attention(x, x, x).softmax(-1).float().sum().item()
    except RuntimeError:  # "not implemented for"
        return False
    return True


def crowding(threads: int, workers: int, cores: int) -> str | None:
    """Describe too many torch threads and sandbox workers for the cores; None if they are not too many."""
    if threads <= cores and threads + workers <= CROWDED * cores:
        return None
    return (
        f"run.threads = {threads} and sandbox.workers = {workers} share {cores} core{'s' if cores > 1 else ''}: they "
        f"will wait for each other; lower run.threads to {cores} at most, and both together to {CROWDED * cores}"
    )


def set_threads(threads: int) -> None:
    """Use `threads` threads within torch's operations, and one between them."""
    torch.set_num_threads(threads)
    if threads > 1:
        disable_openmp_spin()
    if torch.get_num_interop_threads() != 1:
        with suppress(RuntimeError):  # can be set only before their first work
            torch.set_num_interop_threads(1)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Call `set_threads` for a block; afterwards restore the threads within operations."""
    with _restore_threads():
        set_threads(threads)
        yield


@contextmanager
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the processor's name by the file `cpuinfo`, else the architecture's."""
    name = re.search(r"^model name\s*: (.+)$", _read(cpuinfo), re.MULTILINE)
    return name[1].strip() if name else platform.machine()


def look_at_machine(cpuinfo: Path = CPUINFO) -> Machine:
    """Describe this machine. cpuinfo: see `cpu_name`."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return Machine(
        cpu_name(cpuinfo),
        bfloat16_speed(),
        usable_cores(),
        # From compute capability 8.0 on (Ampere) there are units for bfloat16; before, torch imitates them.
        tuple(
            Gpu(about.name, about.major >= 8, about.total_memory)
            for about in map(torch.cuda.get_device_properties, gpus)
        ),
    )


@cache
def bfloat16_speed() -> float:
    """Time bfloat16 products on this CPU, relative to float32, with one thread.

    It takes milliseconds. Some CPUs that have instructions for bfloat16 are slower with them.
    """
    with torch.inference_mode(), _restore_threads():
        torch.set_num_threads(1)  # before `disable_openmp_spin`, further threads would spin
        layers = [(torch.ones(ROWS, SIZE, dtype=kind), torch.ones(SIZE, SIZE, dtype=kind)) for kind in DTYPES]
        best = [math.inf, math.inf]
        for _ in range(ROUNDS + 1):  # the first one warms up
            for n, (x, weight) in enumerate(layers):
                began = time.perf_counter()
                functional.linear(x, weight)
                best[n] = min(best[n], time.perf_counter() - began)
    return best[0] / best[1]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _device(wanted: str, machine: Machine) -> tuple[str, Gpu | None]:
    if wanted == "cpu" or (wanted == "auto" and not machine.gpus):
        return "cpu", None
    if not machine.gpus:
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise RecipeError(f"compute.device = {wanted!r}: {why}; use 'cpu', or 'auto' for whatever there is")
    index = int(wanted.partition(":")[2] or 0)
    if index >= len(machine.gpus):
        there = ", ".join(f"'cuda:{i}' ({gpu.name})" for i, gpu in enumerate(machine.gpus))
        raise RecipeError(f"compute.device = {wanted!r}: there is no such device; there are: {there}")
    return f"cuda:{index}", machine.gpus[index]


def _attention(wanted: Literal["auto", "sdpa", "eager"], config: PretrainedConfig) -> Attention:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    sdpa = getattr(kind, "_supports_sdpa", False)
    if wanted == "sdpa" and not sdpa:
        raise RecipeError(f"compute.attention = 'sdpa': {config.model_type} has none; use 'eager', or 'auto'")
    return wanted if wanted != "auto" else "sdpa" if sdpa else "eager"


def _hints(section: ComputeSection, config: PretrainedConfig, machine: Machine, uses: Sequence[Use]) -> tuple[str, ...]:
    """Advise bfloat16 where it is quicker and the recipe has `auto`, float32 where bfloat16 is slower."""
    width, speed = getattr(config.get_text_config(), "hidden_size", 0), machine.bf16_speed
    work = {"dtype": ("training", BF16_TRAINS), "rollout_dtype": ("rollouts", BF16_DECODES)}
    hints = []
    for key, (what, least) in work.items():
        if key not in uses or width < (least if speed >= QUICKER else BF16_TRAINS):
            continue
        speedup = f"this CPU's products in bfloat16 are {speed:.1f} times as quick as in float32: compute.{key}="
        if getattr(section, key) == "auto" and speed >= QUICKER:
            hints.append(f"{speedup}bfloat16 makes {what} of a model of width {width} quicker, and less exact ({PAGE})")
        if getattr(section, key) == "bfloat16" and speed <= SLOWER:
            hints.append(f"{speedup}float32 makes {what} quicker, and more exact ({PAGE})")
    return tuple(hints)


def _tokens(section: ComputeSection, config: PretrainedConfig, dtype: TrainDtype, gpu: Gpu | None, held: int) -> int:
    """Choose the micro-batch's tokens by the card's whole memory, so that a repeated run has the same value."""
    if gpu is None:
        return TOKENS
    each = activation_bytes(config.get_text_config(), section.checkpointing, value_bytes("cuda", dtype))
    model = sum(p.numel() for p in empty_model(config).parameters()) * held
    room = min(ACTIVATIONS * gpu.memory, FILLED * gpu.memory - model)
    tokens = TOKENS_GPU
    while tokens > TOKENS and tokens * each > room:
        tokens //= 2
    return tokens


def _chunk(gpu: Gpu | None) -> int:
    if gpu is None:
        return CHUNK
    chunk = CHUNK_GPU
    while chunk > CHUNK and chunk * LOGIT > LOGITS * gpu.memory:
        chunk //= 2
    return chunk


def value_bytes(device: str, dtype: TrainDtype) -> float:
    """Return the mean bytes of an activation."""
    return VALUE[dtype] if device == "cpu" or dtype == "float32" else VALUE_GPU


def kv_heads(text: Any) -> tuple[int, int]:
    """Return (number of KV heads, head size) of a text model's configuration."""
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return heads, getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def activation_bytes(text: Any, checkpointing: bool, value: float, keys: int = 0) -> int:
    """Return the peak activation bytes per token of a forward and backward.

    A layer keeps the inputs of its norms and products, queries, keys and values before and after rotation, the output
    of attention, and four times the feed-forward width. With checkpointing it is one such layer with its widest
    gradients, and the inputs of the others.

    Args:
        value: bytes of one activation.
        keys: of a row of attention whose weights are kept; 0 with torch's fused attention.
    """
    hidden, layers = text.hidden_size, text.num_hidden_layers
    heads, size = kv_heads(text)
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    values = 6 * hidden + 3 * size * (text.num_attention_heads + 2 * heads) + 4 * inner
    layer = value * values + 2 * keys * text.num_attention_heads
    kept = layer * layers + value * hidden
    return int(min(kept, layer + value * (inner + 2 * hidden) + 4 * hidden * layers) if checkpointing else kept)


@dataclass(frozen=True, slots=True)
class Computing:
    """Settings of an optimiser step's forward and backward. Only `temperature` changes results beyond rounding.

    micro_batch_tokens: padded ids of one forward and backward; a longer sample goes alone. Bounds memory, and on a CPU
    more is also slower, as it leaves the cache. dtype: of the matrix products and attention (autocast); weights,
    gradients, optimiser and log-probs stay float32. checkpointing: keep no activations inside a layer and compute them
    again in the backward. logits_chunk: logits (ids × vocabulary) that exist at once; 2²⁴ are 64 MiB in float32.
    share_prompts: compute common prefixes of a micro-batch once. temperature: of the trained policy, which divides its
    logits, as in the rollouts.
    """

    micro_batch_tokens: int = TOKENS
    dtype: TrainDtype = "float32"
    checkpointing: bool = False
    logits_chunk: int = CHUNK
    share_prompts: bool = True
    temperature: float = 1.0


DEFAULT_COMPUTING = Computing()


def computing_of(section: ComputeSection, place: Placement) -> Computing:
    """Return the settings of a recipe's section on its placement."""
    return Computing(
        micro_batch_tokens=section.micro_batch_tokens or place.micro_batch_tokens,
        dtype=place.dtype,
        checkpointing=section.checkpointing,
        logits_chunk=section.logits_chunk or place.logits_chunk,
        share_prompts=section.share_prompts,
    )
