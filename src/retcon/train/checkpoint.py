"""Checkpoints: a Hugging Face folder that anything loads, with the state that training needs to go on exactly.

Where adapters are trained, a checkpoint holds these in peft's format, in place of the weights, which do not change.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from retcon.chat.template import MORE
from retcon.core.errors import CheckpointError
from retcon.models.keeping import as_os_error
from retcon.models.lora import CONFIG, WEIGHTS, Adapter
from retcon.runs.cost import Cost
from retcon.runs.folder import RunFolder
from retcon.store.whole import whole_folder, write_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

KEPT = 2
TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", TEMPLATE, "chat_template.json",
)  # fmt: skip
STATE, ABOUT = "trainer.safetensors", "trainer.json"
NEEDED = ("tokenizer.json", STATE, ABOUT)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. step: steps taken. drawn: prompts drawn in each stage so far, the data position of a run
    that rolls out. spent: what it cost."""

    step: int = 0
    drawn: tuple[int, ...] = ()
    spent: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What belongs to a model besides its weights. folder: that has them. template: the chat template that the model
    learns to be asked through; empty for that of the folder."""

    folder: Path
    template: str = ""

    def copy_to(self, folder: Path) -> None:
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)
        if self.template:
            (folder / TEMPLATE).write_text(self.template, encoding="utf-8")  # it goes before any other
        elif (self.folder / MORE).is_dir():
            shutil.copytree(self.folder / MORE, folder / MORE)


def save_model(model: PreTrainedModel, files: TokenizerFiles, out: Path, adapter: Adapter | None = None) -> None:
    """`model` as a Hugging Face folder `out`, whole or not at all.

    adapter: which were merged into `model`, for `out/adapter`. Raises StorageError where it cannot be written.
    """
    with whole_folder(out) as partial, as_os_error():
        model.save_pretrained(partial)
        files.copy_to(partial)
        if adapter is not None:
            (partial / "adapter").mkdir()
            adapter.save(partial / "adapter")


def save_checkpoint(
    run: RunFolder,
    progress: Progress,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    *,
    files: TokenizerFiles,
    adapter: Adapter | None = None,
) -> Path:
    """The state after `progress.step` steps; of older checkpoints the newest is kept beside it. adapter: what is
    trained, where that is not `model`.

    Raises StorageError where it cannot be written; every older checkpoint is then still there.
    """
    target = run.checkpoint(progress.step)
    with whole_folder(target) as partial, as_os_error():
        if adapter is None:
            model.save_pretrained(partial)
        else:
            adapter.save(partial)
        files.copy_to(partial)
        save_file(_optimizer_tensors(model, optimizer), partial / STATE)
        write_json(partial / ABOUT, {"step": progress.step, "drawn": progress.drawn, **asdict(progress.spent)})
    for _, old in run.checkpoints()[KEPT:]:
        _let_go(old)
    return target


def _let_go(old: Path) -> None:
    """Remove a checkpoint; of one that was moved elsewhere, the link alone. What a disk does not give up, as a
    network's while somebody reads it, stays for the next time: no run ends for that."""
    if old.is_symlink():
        with suppress(OSError):
            old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def newest_checkpoint(run: RunFolder) -> Path | None:
    """The newest checkpoint that has all of its files; None where there is none."""
    for _, folder in run.checkpoints():
        if all((folder / name).is_file() for name in NEEDED) and _has_weights(folder):
            return folder
    return None


def _has_weights(folder: Path) -> bool:
    whole = (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    return whole or all((folder / name).is_file() for name in (CONFIG, WEIGHTS))


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Name the checkpoint whose files cannot be read, and what to do, in a CheckpointError."""
    try:
        yield
    except (
        CheckpointError,
        OSError,
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise CheckpointError(
            f"the checkpoint {folder} cannot be read ({error}): delete that folder and run the same command again, "
            "which goes on from the checkpoint before it, or from the start"
        ) from error


def read_progress(folder: Path) -> Progress:
    """How far the checkpoint's run had come. Raises CheckpointError for a broken file."""
    with reading(folder):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        spent = Cost(float(about["cpu_s"]), float(about["wall_s"]))
        drawn = about["drawn"]  # one number where there were no stages yet
        return Progress(int(about["step"]), tuple(map(int, drawn if isinstance(drawn, list) else [drawn])), spent)


def load_optimizer(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Put the saved state into `optimizer`, exactly. Raises CheckpointError where it cannot be read or does not fit."""
    parameters = dict(model.named_parameters())
    with reading(folder):
        for name, tensor in load_file(folder / STATE).items():
            key, _, parameter = name.partition("/")
            optimizer.state[parameters[parameter]][key] = tensor.to(parameters[parameter].device)


def _optimizer_tensors(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
