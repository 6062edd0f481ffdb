"""Memory of the device, and settings of its libraries."""

from __future__ import annotations

import os
from functools import cache

import torch

from retcon.core.machine import available_memory

KERNELS = "256"
"""Kernels in oneDNN's cache, by default 1,024: one for each shape, and batches have many. All of them together take
hundreds of MiB; making one anew takes less than running it."""


@cache
def limit_kernels() -> None:
    """Limit oneDNN's cache to KERNELS kernels; the environment takes precedence. It reads the limit when it makes its
    first kernel, which happens here: this does nothing in a process whose torch has computed before."""
    ours = [n for n in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY") if n not in os.environ]
    os.environ.update(dict.fromkeys(ours, KERNELS))
    try:
        if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            torch.ops.mkldnn._linear_pointwise(torch.ones(1, 1), torch.ones(1, 1), None, "none", [], "")
    finally:
        for name in ours:
            del os.environ[name]


@cache
def keep_pages() -> None:
    """Let glibc keep up to 64 MiB of freed memory: new pages cost more than most operations on them. It keeps them once
    a block of nearly 32 MiB was freed, as here. Other libraries and thresholds in the environment are not affected."""
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


@cache
def disable_cudnn() -> None:
    """Disable attention by cuDNN, torch's first choice on Hopper and Blackwell: it makes a plan for each shape, in tens
    to hundreds of ms, and nearly every forward has new shapes."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def resting_bytes(device: torch.device) -> int:
    """Return the bytes of slabs that outlast their keys and values: a sixteenth of a GPU's memory, 0 on CPUs. Graphs
    over them would have to be recorded anew in every training step."""
    return int(torch.cuda.mem_get_info(device)[1]) // 16 if device.type == "cuda" else 0


def free_memory(device: torch.device) -> int:
    """Return the free bytes of the device, torch's own reserve included."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    known = available_memory()
    return known if known is not None else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
