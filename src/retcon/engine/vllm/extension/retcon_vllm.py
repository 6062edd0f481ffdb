"""Extension of vLLM servers: load weights from the trainer's folder in memory.

This folder is on the server's PYTHONPATH, and nothing else of Retcon: the server has its own environment. With
`--worker-extension-cls retcon_vllm.Extension` each of the server's workers imports it before it makes the engine of
`--weight-transfer-config '{"backend": "retcon"}'`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

BACKEND = "retcon"


@dataclass
class NoInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is elsewhere
    """Empty init info."""


@dataclass
class FromFolder(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is elsewhere
    """Update info. folder: has the weights as *.safetensors, named as in a checkpoint."""

    folder: str


class FolderEngine(WeightTransferEngine[NoInit, FromFolder]):  # type: ignore[misc]  # vLLM is elsewhere
    """vLLM's weight transfer over shared memory: a folder under /dev/shm."""

    init_info_cls = NoInit
    update_info_cls = FromFolder

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Load weights without the base class's wait for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FromFolder) -> None:
        """Load the weights of a folder. Raises FileNotFoundError if this machine sees none in it."""
        files = sorted(Path(update_info.folder).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(
                f"{update_info.folder} has no *.safetensors: is the trainer on another machine? "
                "engine.weights_folder names a folder that both see"
            )
        self.model.load_weights(_tensors(files))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            # On CPUs vLLM multiplies with packed weights, and 0.32 does not pack those of an embedding anew when it
            # reloads it: where input and output are tied, the old ones would go on making the logits.
            for layer in self.model.modules():
                if isinstance(layer, VocabParallelEmbedding):
                    layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Do nothing: no resources are held."""


def _tensors(files: list[Path]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        yield from load_file(file).items()


if BACKEND not in WeightTransferEngineFactory._registry:  # imported by the server and by its workers
    WeightTransferEngineFactory.register_engine(BACKEND, FolderEngine)


class Extension:
    """Worker extension without methods: the import is all that matters."""


def _end_with(owner: int) -> None:
    """End this worker's server once the process that started it is gone, perhaps killed."""
    while Path(f"/proc/{owner}").exists():
        time.sleep(1)
    os.kill(os.getppid(), signal.SIGTERM)


if owner := os.environ.get("RETCON_OWNER"):
    threading.Thread(target=_end_with, args=(int(owner),), daemon=True).start()
