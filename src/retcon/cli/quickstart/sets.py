"""The quickstarts there are: each a folder of recipes, and what its plan needs to know besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retcon.cli.arguments import split_overrides
from retcon.config.load import shipped_recipes
from retcon.core.errors import RecipeError, nearest

COLD_START = "cold_start"


@dataclass(frozen=True, slots=True)
class QuickstartSet:
    """recipes: the folder of shipped recipes: `cold_start`, and one an arm. on_data: it learns from a data set, which
    `--data` replaces; its plan is measured and printed before work starts, and `--hours` scales it. sampled: tokens
    that a rollout samples, as it comes out. demonstrations: that its data give at most. from_scratch: it can start from
    fresh weights. usual: the arms that it compares unless told."""

    recipes: str
    usual: tuple[str, ...]
    on_data: bool = False
    sampled: float = 0.0
    demonstrations: int = 0
    from_scratch: bool = False

    @property
    def cold_start(self) -> str:
        """The recipe of the cold start."""
        return f"{self.recipes}/{COLD_START}"

    @property
    def arms(self) -> list[str]:
        """The names of all arms that there are recipes of."""
        prefix = f"{self.recipes}/"
        names = [name.removeprefix(prefix) for name in shipped_recipes() if name.startswith(prefix)]
        return [name for name in names if name != COLD_START]

    def arm(self, name: str) -> str:
        """The recipe of an arm. Raises RecipeError with the nearest name."""
        if name not in self.arms:
            raise RecipeError(f"no arm '{name}'{nearest(name, self.arms)}; there are: {', '.join(self.arms)}")
        return f"{self.recipes}/{name}"


SETS = {
    "numbers": QuickstartSet("quickstart", ("baseline", "saar", "blame"), from_scratch=True),
    "smollm2": QuickstartSet("smollm2", ("baseline", "saar"), on_data=True, sampled=90, demonstrations=6000),
}
DEFAULT = "numbers"


def arms_of(given: str | None, about: QuickstartSet) -> tuple[str, ...]:
    """What `--arms` names, each once; the usual ones where it is not given. Raises RecipeError where it names none."""
    if given is None:
        return about.usual
    named = tuple(dict.fromkeys(filter(None, (part.strip() for part in given.split(",")))))
    if not named:
        raise RecipeError(f"--arms names no arm; there are: {', '.join(about.arms)}")
    return named


def chosen(words: Sequence[str]) -> tuple[str, list[str]]:
    """The words after `retcon quickstart`: which one, if the first is no `key=value`, and the overrides.

    Raises RecipeError for one that there is not, with the nearest name, and for a further word that is no override.
    """
    named, overrides = split_overrides(words)
    name = DEFAULT if named is None else named
    if name not in SETS:
        raise RecipeError(f"no quickstart '{name}'{nearest(name, SETS)}; there are: {', '.join(SETS)}")
    return name, overrides
