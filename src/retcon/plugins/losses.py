"""Loss settings of [rl] that other trainers' losses lack."""

from __future__ import annotations

from collections.abc import Collection

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError

OWN = {
    "splice_weight": "none", "mask_negative_spliced": False, "imitate_spliced": 0.0, "contrast": 0.0, "dpo_beta": 0.0,
    "blame": 0.0, "echo": 0.0, "sdpo": 0.0, "shared_advantage": "own",
    "step_advantage": "none",
}  # fmt: skip
"""Keys of [rl], and their values that change nothing."""


def check_loss_supported(recipe: Recipe, trainer: str, *, credits: Collection[str] = ("root",)) -> None:
    """Raise RecipeError for a loss setting that the named trainer lacks. credits: kinds of [credit] that it has."""
    for key, nothing in OWN.items():
        if getattr(recipe.rl, key) != nothing:
            raise RecipeError(
                f"rl.{key} = {getattr(recipe.rl, key)}: {trainer}'s loss has no such term; leave it out, or set "
                f"rl.{key}={str(nothing).lower()}"
            )
    if recipe.credit.kind not in credits:
        raise RecipeError(
            f"credit.kind = {recipe.credit.kind}: {trainer} cannot train children so; set credit.kind="
            f"{' or credit.kind='.join(credits)}"
        )
