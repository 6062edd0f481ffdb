"""Which keys there are, in sections of every kind that comes with Retcon."""

from __future__ import annotations

from collections.abc import Mapping

from retcon.config.schema import SECTIONS
from retcon.config.section import Chosen, Section
from retcon.core.errors import RecipeError


def variants(section: str) -> dict[str, type[Section]]:
    """The classes of a section by kind, the default's first; by an empty name where there is but one."""
    about = SECTIONS[section]
    if not issubclass(about, Chosen):
        return {"": about}
    default = about.model_fields[about.chosen_by].default
    return dict(sorted(about.kinds.all(), key=lambda kind: kind[0] != default))


def all_keys(section: str) -> tuple[str, ...]:
    """The keys of a section, of all its kinds."""
    return tuple(dict.fromkeys(key for about in variants(section).values() for key in about.model_fields))


def keys_in(section: str, given: Mapping[str, object]) -> tuple[str, ...]:
    """The keys of a section with these keys: those of its kind, which may be one's own; of all where it names none."""
    about = SECTIONS[section]
    try:
        return tuple((about.kind_in(given) if issubclass(about, Chosen) else about).model_fields)
    except RecipeError:
        return all_keys(section)


def homes(section: str, key: str) -> list[str]:
    """The kinds of a section that have this key; none where the section has no kinds."""
    return [kind for kind, about in variants(section).items() if kind and key in about.model_fields]


def own_keys(section: str, kind: str) -> tuple[str, ...]:
    """The keys of a kind that not all kinds of the section share."""
    shared = SECTIONS[section].model_fields
    return tuple(key for key in variants(section)[kind].model_fields if key not in shared)
