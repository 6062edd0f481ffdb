"""The trainer's weights in a folder in memory, for servers on this machine to read."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.core.errors import EngineError

if TYPE_CHECKING:  # they bring torch
    from transformers import PreTrainedModel

MEMORY = Path("/dev/shm")
PREFIX = "retcon-weights-"


def write_weights(model: PreTrainedModel) -> Path:
    """A new folder with the weights of `model`, named as in a checkpoint; in shared memory where the machine has that.
    What trainers that were killed have left there is removed.

    Raises EngineError where they cannot be written.
    """
    from safetensors import SafetensorError

    from retcon.models.loading import without_bars

    _sweep()
    name = f"{PREFIX}{_process(os.getpid())}-"
    folder = Path(tempfile.mkdtemp(prefix=name, dir=MEMORY if MEMORY.is_dir() else None))
    try:
        with without_bars():
            model.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(
            f"the weights cannot be written to {folder}, where {free / 2**20:,.0f} MiB are free: {error}"
        ) from error
    return folder


def _sweep() -> None:
    """Remove from memory what processes have left that are gone, of those whose ids can be told."""
    for folder in MEMORY.glob(f"{PREFIX}*-*-*"):
        pid = folder.name.split("-")[-2]
        if pid.isdecimal() and folder.name.startswith(f"{PREFIX}{_process(pid)}-") and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _process(pid: int | str) -> str:
    """A process by its id and whose ids these are: containers that share a folder number theirs apart."""
    space = Path("/proc/self/ns/pid")
    return f"{space.stat().st_ino}-{pid}" if space.exists() else "unknown"
