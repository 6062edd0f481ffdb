"""What the machine has."""

from __future__ import annotations

import os

import torch


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
