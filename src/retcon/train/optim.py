"""The optimiser, its schedule, and the torch settings of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.utils import deterministic

from retcon.config.section import Schedule
from retcon.core.errors import TrainingDiverged
from retcon.models.devices import Placement, torch_threads
from retcon.models.loading import without_progress_bars

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def torch_settings(place: Placement) -> Iterator[None]:
    """Set torch's threads and deterministic CPU kernels for a block.

    On CUDA several kernels have no deterministic variant, and a run need not repeat. transformers' progress bars are
    hidden; all settings are restored afterwards.
    """
    before = torch.are_deterministic_algorithms_enabled()
    on_gpu = place.device != "cpu" and torch.cuda.is_available()
    cuda = [torch.device(place.device)] if on_gpu else []
    filling = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(place.device == "cpu")
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with without_progress_bars(), torch_threads(place.threads), torch.random.fork_rng(devices=cuda):
            yield
    finally:
        torch.use_deterministic_algorithms(before)
        deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


def adamw(
    model: PreTrainedModel, lr: float, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """Return AdamW (arXiv 1711.05101) for parameters with a gradient; only matrices decay, as norms and biases have
    nothing to be kept small."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim >= 2]
    others = [p for p in trained if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


def step_optimizer(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, *, lr: float, max_grad_norm: float, batch: str = "a batch"
) -> float:
    """Take an optimiser step, drop the gradients; return their unclipped norm.

    Raises TrainingDiverged, which names the batch, for a norm that is not finite, before the weights are touched.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
    if not math.isfinite(norm):
        raise TrainingDiverged(f"{batch}: the gradient norm is {norm}")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def learning_rate(step: int, steps: int, *, peak: float, rising: int, schedule: Schedule) -> float:
    """Return the learning rate of `step` (from 0) of `steps`: linear up over the first `rising` steps, the last of
    which has `peak`; then by the schedule from `peak` to 0 at step `steps`."""
    if step < rising:
        return peak * (step + 1) / rising
    if schedule == "constant":
        return peak
    past, falling = step - rising, max(1, steps - rising)
    if schedule == "linear":
        return peak * (1 - past / falling)
    return peak * 0.5 * (1 + math.cos(math.pi * past / falling))


def warmup_steps(share: float, steps: int) -> int:
    """Return the steps of a warm-up over a share of `steps`."""
    return max(1, round(share * steps))
