"""What the machine has."""

from __future__ import annotations

import os
from functools import cache

import torch

from retcon.core.machine import available_memory

KERNELS = "256"
"""Kernels that oneDNN keeps, of 1,024 by default: one for each shape, and batches have many. All of them together take
hundreds of MiB; making one anew takes less than running it."""


@cache
def bound_kernels() -> None:
    """Have oneDNN keep KERNELS kernels; what the environment says goes first. It looks when it makes its first one,
    which happens here: this does nothing in a process whose torch has computed before."""
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
    """Have glibc keep what is freed, up to 64 MiB of it, for what comes next: new pages cost more than what most
    operations do with them. It does so by itself once a block of nearly 32 MiB was freed; this is one. Elsewhere, and
    where the environment sets its thresholds, nothing happens."""
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


@cache
def attend_without_cudnn() -> None:
    """Have torch never attend by cuDNN, which it does first on Hopper and Blackwell: that makes a plan for each shape,
    in tens to hundreds of milliseconds, and ours are new in nearly every forward."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def kept_at_rest(device: torch.device) -> int:
    """Bytes of slabs up to which they stay when all keys and values are forgotten: a sixteenth of a GPU's memory, as
    what is recorded over them would have to be recorded anew, for every step of a training. Nothing on CPUs."""
    return int(torch.cuda.mem_get_info(device)[1]) // 16 if device.type == "cuda" else 0


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on the device, those among them that torch holds for what comes next."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    known = available_memory()
    return known if known is not None else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
