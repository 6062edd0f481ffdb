"""The recipes that come with Retcon, by name, from a source checkout as from an installed wheel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from retcon.core.errors import RecipeError, nearest

_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")  # in a wheel; in a checkout


@cache
def shipped_recipes() -> Mapping[str, Path]:
    """Name, such as `quickstart/saar`, to file. Listed once: planning a comparison asks for recipes dozens of times."""
    home = next((home for home in _HOMES if home.is_dir()), None)
    if home is None:
        return {}
    files = sorted(home.rglob("*.toml"))
    return MappingProxyType({str(file.relative_to(home).with_suffix("")): file for file in files})


def find_recipe(name_or_path: str) -> Path:
    """The file of a recipe: a path, or the name of a shipped one. Raises RecipeError with the nearest name, or, of an
    override in its place, with what comes before one."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    name = name_or_path.removesuffix(".toml").removeprefix("recipes/")
    if name in shipped:
        return shipped[name]
    if "=" in name:
        raise RecipeError(
            f"'{name_or_path}' changes a recipe, and none is named before it: write RECIPE KEY=VALUE; `retcon recipes` "
            "lists those that come with Retcon, and examples/own_data has some for models and problems of yours"
        )
    beside = [file.stem for file in sorted(path.parent.glob("*.toml"))]  # which are alike in their ends
    hint = nearest(path.stem, beside).replace("'?)", ".toml'?)") or nearest(name, shipped)
    raise RecipeError(f"no recipe '{name_or_path}'{hint}: it is neither a file nor a name that `retcon recipes` lists")
