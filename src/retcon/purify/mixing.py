"""Which rollouts are purified when only a share of them is."""

from __future__ import annotations

from retcon.core.seeds import derive


def purified(probability: float, seed: int, step: int, prompt_id: str, index: int) -> bool:
    """Whether rollout `index` of a prompt's group is purified at `step`: true for a share `probability` of all.

    A pure draw from (seed, step, prompt, index); raising `probability` only adds rollouts to those that are purified.
    """
    return derive("purify", seed, step, prompt_id, index) < probability * 2**63
