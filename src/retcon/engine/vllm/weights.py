"""The trainer's weights in a folder, for servers to read: in memory, or where servers on other machines see it, too."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from retcon.core.errors import EngineError

MEMORY = Path("/dev/shm")
PREFIX = "retcon-weights-"


def write_weights(save: Callable[[Path], object], parent: Path | None = None) -> Path:
    """A new folder in `parent` with what `save` writes into it; without one in shared memory, where the machine has
    that. What trainers of this machine that were killed have left there is removed.

    Raises EngineError where it cannot be written.
    """
    from safetensors import SafetensorError

    from retcon.models.loading import without_bars

    parent = parent or (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir()))
    try:
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{_process(os.getpid())}-", dir=parent))
    except OSError as error:
        raise EngineError(f"no folder for the weights can be made in {parent}: {error}") from error
    try:
        folder.chmod(0o755)  # a server may be another user's
        with without_bars():
            save(folder)
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(
            f"the weights cannot be written to {folder}, where {free / 2**20:,.0f} MiB are free: {error}"
        ) from error
    return folder


def _sweep(parent: Path) -> None:
    """Remove what processes have left that are gone, of those whose ids can be told."""
    for folder in parent.glob(f"{PREFIX}*-*-*"):
        pid = folder.name.split("-")[-2]
        if pid.isdecimal() and folder.name.startswith(f"{PREFIX}{_process(pid)}-") and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _process(pid: int | str) -> str:
    """A process by its id and whose ids these are: containers and machines that share a folder number theirs apart."""
    space, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    if not (space.exists() and boot.exists()):
        return "unknown"
    return f"{boot.read_text(encoding='ascii')[:8]}-{space.stat().st_ino}-{pid}"
