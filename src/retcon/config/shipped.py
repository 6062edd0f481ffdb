"""The recipes that come with Retcon, by name, from a source checkout as from an installed wheel."""

from __future__ import annotations

from pathlib import Path

from retcon.core.errors import RecipeError, nearest

_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")  # in a wheel; in a checkout


def shipped_recipes() -> dict[str, Path]:
    """Name, such as `quickstart/saar`, to file."""
    home = next((home for home in _HOMES if home.is_dir()), None)
    if home is None:
        return {}
    return {str(file.relative_to(home).with_suffix("")): file for file in sorted(home.rglob("*.toml"))}


def find_recipe(name_or_path: str) -> Path:
    """The file of a recipe: a path, or the name of a shipped one. Raises RecipeError with the nearest name."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    name = name_or_path.removesuffix(".toml").removeprefix("recipes/")
    if name in shipped:
        return shipped[name]
    hint = nearest(name, shipped)
    raise RecipeError(f"no recipe '{name_or_path}'{hint}: neither a file nor one that `retcon recipes` lists")
