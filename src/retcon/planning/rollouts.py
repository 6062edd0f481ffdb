"""Memory and disk checks of rollouts before their model is loaded; torch only if needed."""

from __future__ import annotations

import warnings
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning


def check_rollouts_fit(recipe: Recipe, checkpoint: Path, out: Path | None = None) -> None:
    """Check that a checkpoint's rollouts fit in memory. out: also check that an evaluation fits on its disk.

    Raises RecipeError where `compute.kv_memory_mb` or memory does not hold one rollout.
    """
    if not recipe.engine.in_process:
        return
    try:
        from retcon.models.loading import load_config
        from retcon.models.placing import place_model
        from retcon.planning.needs import check_fits, check_memory_fits, needs_of
    except ImportError:  # without torch, which `build_policy` reports
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComputeWarning)  # they come when the model is loaded
        where = place_model(recipe, load_config(checkpoint), ("rollout_dtype",))
    needs = needs_of("eval", recipe, checkpoint, where)
    if out is None:
        check_memory_fits(needs)
    else:
        check_fits(needs, out)
