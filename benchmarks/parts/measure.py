"""What the benchmarks of the engine share: the model, the machine's line, runs that take turns, medians."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 2304


def small_model(*, layers: int = 4, width: int = 256) -> Qwen3ForCausalLM:
    """Qwen3 with seeded random weights in fp32: two query heads to a key head; 4 M parameters by default."""
    torch.manual_seed(0)
    heads = max(2, width // 64)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=width // heads,
        intermediate_size=3 * width,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
    )
    return Qwen3ForCausalLM(config).eval()


def machine() -> str:
    """Date, processor, load and versions."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    name = names[0].partition(": ")[2] if names else platform.machine()
    return (
        f"{datetime.date.today()} · {name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} · "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread"
    )


@dataclass(frozen=True, slots=True)
class Took:
    """CPU-seconds of this process, and seconds on the wall."""

    cpu: float
    wall: float


def take_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, clocks: Mapping[str, Callable[[], float]] | None = None
) -> dict[str, list[Took]]:
    """Run each once a round, so that outside load meets all alike. clocks: by run, CPU-seconds where they are not this
    process's, as those of a server."""
    took: dict[str, list[Took]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            clock = (clocks or {}).get(name, time.process_time)
            cpu, wall = clock(), time.perf_counter()
            run()
            took[name].append(Took(clock() - cpu, time.perf_counter() - wall))
    return took


def tree_seconds(pid: int) -> float:
    """Return the CPU-seconds of a process and its living descendants (Linux)."""
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    children = " ".join(file.read_text() for file in process.glob("task/*/children")).split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(tree_seconds(int(child)) for child in children)


def rates(count: int, seconds: list[float]) -> str:
    """`count` things per second: median (min…max)."""
    return f"{count / statistics.median(seconds):8,.0f} ({count / max(seconds):,.0f}…{count / min(seconds):,.0f})"
