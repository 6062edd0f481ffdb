"""The names of Retcon that the goldens use, besides its command line. A rename inside is followed here alone."""

from __future__ import annotations

from typing import Any

from retcon.config.load import load_recipe

try:
    from retcon.chat.family import FAMILIES
    from retcon.config.load import shipped_recipes
except ImportError:  # the layout up to 9823b96e, which goldens are compared with
    from retcon.config.shipped import shipped_recipes  # type: ignore[import-not-found,no-redef]


def recipe_names() -> list[str]:
    return sorted(shipped_recipes())


def recipe_values(name: str | None) -> dict[str, Any]:
    """Every key of a shipped recipe with its value, as JSON has them; of None the defaults."""
    return load_recipe(name).model_dump(mode="json")


def family_names() -> list[str]:
    return list(FAMILIES.names)


def family_template(name: str) -> str:
    """The chat template that a family ships; empty without one."""
    return getattr(FAMILIES.find(name), "template", "")
