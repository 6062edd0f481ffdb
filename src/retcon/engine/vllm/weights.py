"""The trainer's weights in a folder in memory, for servers on this machine to read."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.core.errors import EngineError

if TYPE_CHECKING:  # they bring torch
    from transformers import PreTrainedModel

MEMORY = Path("/dev/shm")


def write_weights(model: PreTrainedModel) -> Path:
    """A new folder with the weights of `model`, named as in a checkpoint; in shared memory where the machine has that.

    Raises EngineError where they cannot be written.
    """
    from safetensors import SafetensorError

    from retcon.models.loading import without_bars

    folder = Path(tempfile.mkdtemp(prefix="retcon-weights-", dir=MEMORY if MEMORY.is_dir() else None))
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
