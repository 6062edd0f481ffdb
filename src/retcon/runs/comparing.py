"""Which keys of a recipe a piece of work depends on, and how two recipes differ in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retcon.config.schema import Recipe
from retcon.config.section import Section, Work

Values = Mapping[str, Mapping[str, object]]
"""A recipe, or a part of it, as JSON: section to key to value."""


def relevant(recipe: Recipe, work: Work) -> dict[str, dict[str, object]]:
    """What of the recipe `work` depends on, as its sections declare (`Section.matters_to`), as JSON."""
    found: dict[str, dict[str, object]] = {}
    for name in type(recipe).model_fields:
        section = getattr(recipe, name)
        keys = section.keys_for(work) if isinstance(section, Section) else ()
        if keys:
            found[name] = section.model_dump(mode="json", include=set(keys))
    return found


def differing(old: Values, new: Values) -> Iterator[str]:
    """`section.key was X, is Y` for every key of either that differs; what one of them lacks is None there.

    Sections that `new` does not have are not compared.
    """
    for section, now in new.items():
        before = old.get(section, {})
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                yield f"{section}.{key} was {before.get(key)!r}, is {now.get(key)!r}"
