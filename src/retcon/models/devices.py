"""Where, and in which precision, a run computes: chosen once, before work starts, and told in one line."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn import functional

from retcon.config.schema import ComputeSection, Recipe
from retcon.core.errors import ComputeWarning, RecipeError
from retcon.core.machine import usable_cores
from retcon.models.loading import empty_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# How torch's threads wait for each other: asleep, not spinning.
#
# Torch's operations are shared out by OpenMP, whose threads spin between two of them, by default for milliseconds. On
# cores that others use too, the one that is waited for is not running meanwhile: decoding then takes ten times the CPU
# time. `OMP_WAIT_POLICY=PASSIVE` ends that, as the command sets it, but is read once, when torch is loaded, which in
# other people's programs has happened by the time that anyone asks us.

DECIDED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables with which a user says how threads are to wait."""


def calm_threads() -> None:
    """From here on, OpenMP's threads in this process spin for microseconds at most before they sleep. Nothing happens
    where a user has decided otherwise (DECIDED), or where OpenMP is of no kind that can be told."""
    if any(name in os.environ for name in DECIDED):
        return
    for path in _loaded():
        name = Path(path).name
        if name.startswith("libgomp"):
            _crowd(path)
        elif hasattr(library := ctypes.CDLL(path), "kmp_set_blocktime"):
            library.kmp_set_blocktime(0)


@functools.cache
def _crowd(path: str) -> None:
    """GNU's cannot be told once it is loaded. But it spins 100 times, not 300,000, where there are more OpenMP threads
    than cores (its manual, on GOMP_SPINCOUNT): so a team of as many as there are cores is made, and put to sleep for
    good. Its work is `free(NULL)`, which is none."""
    library, work = ctypes.CDLL(path), ctypes.CDLL(None).free
    made = threading.Event()

    def sleep() -> None:
        library.GOMP_parallel(work, None, ctypes.c_uint(usable_cores()), ctypes.c_uint(0))
        made.set()
        threading.Event().wait()  # the team lives as long as the thread that made it

    threading.Thread(target=sleep, name="retcon-openmp", daemon=True).start()
    made.wait()


def _loaded() -> Iterator[str]:
    """Files of the OpenMP libraries that this process has loaded."""
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
"""How quick products in bfloat16 must be, in float32's speed, to be advised, and to be advised against."""
ROUNDS, ROWS, SIZE = 5, 256, 512
"""Of the products that `bfloat16_speed` times."""
DTYPES = torch.float32, torch.bfloat16
TOKENS, TOKENS_GPU = 2048, 16384
"""Padded ids of a micro-batch where the recipe says nothing: what suits a CPU's cache, and the most on a GPU, which
waits for its kernels to be started where they are few. There they are halved until they fit, down to a CPU's."""
CHUNK, CHUNK_GPU = 1 << 24, 1 << 28
"""Likewise logits that exist at once: on a GPU as many as LOGITS of its memory hold, with what comes of them."""
ACTIVATIONS, FILLED, LOGITS = 0.4, 0.85, 0.05
"""Activations fit in the first share of a GPU's memory, and with the model in the second."""
HELD, HELD_FROZEN, REFERENCE = 22, 10, 4
"""Bytes of a parameter during an update: weights, gradients and two moments in float32, and copies in bfloat16 for
products, for rollouts, and laid side by side for these; where adapters are trained, of a weight as it is and these
copies alone. A reference model has it in float32 once more."""
LOGIT = 12
"""Bytes of a logit in a step: itself, its gradient, and one more copy, all in float32."""
VALUE = {"float32": 4.0, "bfloat16": 2.75}
"""Bytes of an activation on a CPU, in the mean: norms, and what they get, stay float32."""
VALUE_GPU = 3.0
"""The same in bfloat16 on a GPU, where norms keep more: one H100 took .9 of it for the shape of SmolLM2-135M, and .7 to
1.1 of it for Qwen3-0.6B's."""
PAGE = "docs/training/compute.md"
CPUINFO = Path("/proc/cpuinfo")
CROWDED = 3
"""Threads and sandbox workers for each core beyond which they are in each other's way. Workers mostly wait."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device. bf16: whether it has bfloat16 units. memory: bytes, all of it."""

    name: str
    bf16: bool
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """cpu: its name. bf16_speed: as `bfloat16_speed` has it. cores: that this process may use. gpus: by index."""

    cpu: str
    bf16_speed: float
    cores: int
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """dtype: of a training step's products. rollout_dtype: of the weights that rollouts decode with. name: of what
    computes. hints: what the recipe could gain here. micro_batch_tokens, logits_chunk: as `kernels.computing` has
    them."""

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
"""Of which of the keys a command makes use: it trains, it rolls out."""
USES: tuple[Use, ...] = ("dtype", "rollout_dtype")


def place(
    recipe: Recipe, config: PretrainedConfig, uses: Sequence[Use] = USES, *, reference: bool = False
) -> Placement:
    """The placement of a recipe's work on this machine, for the model that `config` describes. uses: what hints are
    given for. reference: whether a reference model lies beside it.

    Raises RecipeError as `choose` does. Warns (ComputeWarning) where threads and sandbox workers crowd the cores.
    """
    machine = look_at_machine()
    workers = 0 if recipe.sandbox.url else recipe.sandbox.workers
    if crowd := crowding(recipe.run.threads, workers, machine.cores):
        warnings.warn(crowd, ComputeWarning, stacklevel=2)
    each = (HELD_FROZEN if recipe.lora.rank else HELD) + REFERENCE * reference
    return choose(recipe.compute, config, machine, threads=recipe.run.threads, uses=uses, held=each)


def choose(
    section: ComputeSection,
    config: PretrainedConfig,
    machine: Machine,
    *,
    threads: int,
    uses: Sequence[Use] = USES,
    held: int = HELD,
) -> Placement:
    """What `section` means on `machine`. held: bytes of each of the model's parameters during an update. Raises
    RecipeError for a device, dtype or attention that is unavailable."""
    device, gpu = _device(section.device, machine)
    auto: TrainDtype = "bfloat16" if gpu is not None and gpu.bf16 else "float32"
    dtype = auto if section.dtype == "auto" else section.dtype
    rollouts: RolloutDtype = auto if section.rollout_dtype == "auto" else section.rollout_dtype
    for key, name in {"dtype": dtype, "rollout_dtype": rollouts}.items():
        if not supports(device, getattr(torch, name)):
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


def supports(device: str, dtype: torch.dtype) -> bool:
    """Whether the operations of a transformer's layer exist there; runs them once."""
    try:
        x = torch.ones(2, 4, 8, device=device).to(dtype)
        x = functional.layer_norm(functional.silu(functional.linear(x, x[0, :, :].T @ x[0])), (8,))
        functional.scaled_dot_product_attention(x, x, x).softmax(-1).float().sum().item()
    except RuntimeError:  # "not implemented for", by torch's kernels
        return False
    return True


def crowding(threads: int, workers: int, cores: int) -> str | None:
    """What is wrong with so many torch threads and sandbox workers on so many cores; None where nothing is."""
    if threads <= cores and threads + workers <= CROWDED * cores:
        return None
    return (
        f"run.threads = {threads} and sandbox.workers = {workers} share {cores} core{'s' if cores > 1 else ''}: they "
        f"will wait for each other; lower run.threads to {cores} at most, and both together to {CROWDED * cores}"
    )


def set_threads(threads: int) -> None:
    """`threads` threads within an operation of torch, and one between operations, of which ours have nothing."""
    torch.set_num_threads(threads)
    if threads > 1:
        calm_threads()
    if torch.get_num_interop_threads() != 1:
        with suppress(RuntimeError):  # can be set only before they have worked
            torch.set_num_interop_threads(1)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """`set_threads` for a while; those within an operation then come back to what they were."""
    with _threads_kept():
        set_threads(threads)
        yield


@contextmanager
def _threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name. cpuinfo: where the kernel describes it; without it the name is the architecture's."""
    name = re.search(r"^model name\s*: (.+)$", _read(cpuinfo), re.MULTILINE)
    return name[1].strip() if name else platform.machine()


def look_at_machine(cpuinfo: Path = CPUINFO) -> Machine:
    """This machine. cpuinfo: as in `cpu_name`."""
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
    """The speed of a linear layer in bfloat16 on this CPU, in that of float32, with one thread. It is timed, for
    milliseconds: there are CPUs that have instructions for bfloat16 and are slower with them."""
    with torch.inference_mode(), _threads_kept():
        torch.set_num_threads(1)  # a pool of more would begin to wait here, before anybody has said how
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
    """Of what was left to `auto`: what bfloat16 would speed up. Of what was not: what it slows down."""
    width, speed = getattr(config.get_text_config(), "hidden_size", 0), machine.bf16_speed
    work = {"dtype": ("training", BF16_TRAINS), "rollout_dtype": ("rollouts", BF16_DECODES)}
    hints = []
    for key, (what, least) in work.items():
        if key not in uses or width < (least if speed >= QUICKER else BF16_TRAINS):
            continue
        told = f"this CPU's products in bfloat16 are {speed:.1f} times as quick as in float32: compute.{key}="
        if getattr(section, key) == "auto" and speed >= QUICKER:
            hints.append(f"{told}bfloat16 makes {what} of a model of width {width} quicker, and less exact ({PAGE})")
        if getattr(section, key) == "bfloat16" and speed <= SLOWER:
            hints.append(f"{told}float32 makes {what} quicker, and more exact ({PAGE})")
    return tuple(hints)


def _tokens(section: ComputeSection, config: PretrainedConfig, dtype: TrainDtype, gpu: Gpu | None, held: int) -> int:
    """By the whole memory of the card, not by what is free just now: a run that is repeated has the same."""
    if gpu is None:
        return TOKENS
    each = activations(config.get_text_config(), section.checkpointing, value_bytes("cuda", dtype))
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
    """Of an activation, in the mean."""
    return VALUE[dtype] if device == "cpu" or dtype == "float32" else VALUE_GPU


def kv_heads(text: Any) -> tuple[int, int]:
    """(heads of keys and values, size of each) of a text model's configuration."""
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return heads, getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def activations(text: Any, checkpointing: bool, value: float, keys: int = 0) -> int:
    """Bytes of a token that a forward and backward have at once at most, in all layers. value: bytes of one activation.
    keys: of a row of attention whose weights are kept, 0 where torch's fused attention keeps none.

    Of a layer, in values: the inputs of its norms and of their products, queries, keys and values before and after
    their rotation, what attention gives, and four of the width inside the feed-forward part; beside them the gradient
    that comes into the last layer. With checkpointing there is one such layer, beside its widest gradients, and what
    goes into each of the others.
    """
    hidden, layers = text.hidden_size, text.num_hidden_layers
    heads, size = kv_heads(text)
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    values = 6 * hidden + 3 * size * (text.num_attention_heads + 2 * heads) + 4 * inner
    layer = value * values + 2 * keys * text.num_attention_heads
    kept = layer * layers + value * hidden
    return int(min(kept, layer + value * (inner + 2 * hidden) + 4 * hidden * layers) if checkpointing else kept)
