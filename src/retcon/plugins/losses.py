"""What of [rl] changes a loss in ways that other trainers' losses have no room for."""

from __future__ import annotations

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError

OWN = {
    "splice_weight": "none", "mask_negative_spliced": False, "imitate_spliced": 0.0, "contrast": 0.0, "dpo_beta": 0.0,
    "blame": 0.0, "echo": 0.0, "sdpo": 0.0, "shared_advantage": "own",
}  # fmt: skip
"""Keys of [rl], and their values that change nothing."""


def refuse_own_losses(recipe: Recipe, trainer: str) -> None:
    """Raises RecipeError where the recipe asks for a loss that the trainer of that name does not have."""
    for key, nothing in OWN.items():
        if getattr(recipe.rl, key) != nothing:
            raise RecipeError(
                f"rl.{key} = {getattr(recipe.rl, key)}: {trainer}'s loss knows nothing like it; leave it out, or set "
                f"rl.{key}={str(nothing).lower()}"
            )
    if recipe.credit.kind != "root":
        raise RecipeError(
            f"credit.kind = {recipe.credit.kind}: {trainer} trains roots alone; leave it out, or set credit.kind=root"
        )
