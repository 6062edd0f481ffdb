"""Check that rollouts fit before their model is loaded; imports torch only where the engine computes here."""

from __future__ import annotations

import warnings
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning


def check_rollouts_fit(recipe: Recipe, checkpoint: Path, out: Path | None = None) -> None:
    """Check the memory of rollouts of the model in `checkpoint`, and the disk of an evaluation kept in `out`.

    Raises RecipeError where `compute.kv_memory_mb` or memory holds not one rollout.
    """
    if not recipe.engine.in_process:
        return
    try:
        from retcon.models.loading import load_config
        from retcon.models.placing import place
        from retcon.planning.needs import needs_of, refuse_overfull, refuse_unfit
    except ImportError:  # without torch, which `build_policy` reports
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComputeWarning)  # they come when the model is loaded
        where = place(recipe, load_config(checkpoint), ("rollout_dtype",))
    needs = needs_of("eval", recipe, checkpoint, where)
    if out is None:
        refuse_overfull(needs)
    else:
        refuse_unfit(needs, out)
