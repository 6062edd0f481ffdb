"""How a training step is computed."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.config.schema import ComputeSection
from retcon.models.devices import CHUNK, TOKENS, Placement, TrainDtype


@dataclass(frozen=True, slots=True)
class Computing:
    """Of the forwards and backwards of one optimiser step. But for `temperature` nothing here changes what is learnt,
    except for the rounding.

    micro_batch_tokens: padded ids of one forward and backward; a longer sample goes alone. Bounds memory, and on a CPU
    more is also slower, as it leaves the cache. dtype: of the matrix products and attention (autocast); weights,
    gradients, optimiser and log-probs stay float32. checkpointing: keep no activations inside a layer and compute them
    again in the backward. logits_chunk: logits (ids × vocabulary) that exist at once; 2²⁴ are 64 MiB in float32.
    share_prompts: the tokens that the samples of a micro-batch begin with alike are computed once. temperature: of the
    policy that is trained, whose logits are divided by it, as those of the rollouts were.
    """

    micro_batch_tokens: int = TOKENS
    dtype: TrainDtype = "float32"
    checkpointing: bool = False
    logits_chunk: int = CHUNK
    share_prompts: bool = True
    temperature: float = 1.0


DEFAULT = Computing()


def computing_of(section: ComputeSection, place: Placement) -> Computing:
    """What a recipe's section comes to where the training is placed."""
    return Computing(
        micro_batch_tokens=section.micro_batch_tokens or place.micro_batch_tokens,
        dtype=place.dtype,
        checkpointing=section.checkpointing,
        logits_chunk=section.logits_chunk or place.logits_chunk,
        share_prompts=section.share_prompts,
    )
