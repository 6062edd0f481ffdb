"""Whether an engine that computes here fits, before it loads the model. Without torch this says nothing."""

from __future__ import annotations

import warnings
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning


def refuse_unfit_rollouts(recipe: Recipe, checkpoint: Path, out: Path | None = None) -> None:
    """Raises RecipeError where memory does not hold rollouts of the model in `checkpoint`, `compute.kv_memory_mb` not
    one of them, or the disk of `out` not those of an evaluation that is kept there; None: none is."""
    if not recipe.engine.in_process:
        return
    try:
        from retcon.models.devices import place
        from retcon.models.loading import load_config
        from retcon.planning.needs import needs_of, refuse_overfull, refuse_unfit
    except ImportError:  # without torch, of which `build_policy` speaks where the engine needs it
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComputeWarning)  # they come when the model is loaded
        where = place(recipe, load_config(checkpoint), ("rollout_dtype",))
    needs = needs_of("eval", recipe, checkpoint, where)
    if out is None:
        refuse_overfull(needs)
    else:
        refuse_unfit(needs, out)
