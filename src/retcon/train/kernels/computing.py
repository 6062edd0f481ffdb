"""Settings of a training step's computation."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.config.schema import ComputeSection
from retcon.models.devices import CHUNK, TOKENS, Placement, TrainDtype


@dataclass(frozen=True, slots=True)
class Computing:
    """Settings of an optimiser step's forward and backward. Only `temperature` changes results beyond rounding.

    micro_batch_tokens: padded ids of one forward and backward; a longer sample goes alone. Bounds memory, and on a CPU
    more is also slower, as it leaves the cache. dtype: of the matrix products and attention (autocast); weights,
    gradients, optimiser and log-probs stay float32. checkpointing: keep no activations inside a layer and compute them
    again in the backward. logits_chunk: logits (ids × vocabulary) that exist at once; 2²⁴ are 64 MiB in float32.
    share_prompts: compute common prefixes of a micro-batch once. temperature: of the trained policy, which divides its
    logits, as in the rollouts.
    """

    micro_batch_tokens: int = TOKENS
    dtype: TrainDtype = "float32"
    checkpointing: bool = False
    logits_chunk: int = CHUNK
    share_prompts: bool = True
    temperature: float = 1.0


DEFAULT = Computing()


def computing_of(section: ComputeSection, place: Placement) -> Computing:
    """Return the settings of a recipe's section on its placement."""
    return Computing(
        micro_batch_tokens=section.micro_batch_tokens or place.micro_batch_tokens,
        dtype=place.dtype,
        checkpointing=section.checkpointing,
        logits_chunk=section.logits_chunk or place.logits_chunk,
        share_prompts=section.share_prompts,
    )
