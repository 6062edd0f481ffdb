"""The families that are known: a module in `families` has its own, and no list of them stands anywhere."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Sequence
from functools import cache
from importlib import import_module

from retcon.chat.family import Family
from retcon.core.errors import RecipeError, nearest

AUTO = "auto"


@cache
def names() -> Sequence[str]:
    """What the families are called, in the order of the alphabet."""
    package = import_module("retcon.chat.families")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def named(style: str) -> Family:
    """The family of a name, or of an import path such as `my_package.my_module:MINE`. Raises RecipeError."""
    if style in names():
        family: Family = import_module(f"retcon.chat.families.{style}").FAMILY
        return family
    if ":" not in style:
        raise RecipeError(
            f"unknown chat style {style!r}{nearest(style, [AUTO, *names()])}; one of {', '.join([AUTO, *names()])}, or "
            "an import path such as my_package.my_module:MINE"
        )
    module, _, attribute = style.partition(":")
    try:
        family = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"the chat style {style!r} cannot be imported: {error}") from error
    if not hasattr(family, "find_calls"):
        raise RecipeError(f"the chat style {style!r} is no family: see retcon.chat.family.Family")
    return family


def recognised(has: str | Collection[str], where: str) -> Family:
    """The family whose marks all stand in a template (or among a tokenizer's control tokens), the most marks first.

    Raises RecipeError that names the nearest family otherwise.
    """
    marked = [family for family in map(named, names()) if family.marks]
    known = [family for family in marked if all(mark in has for mark in family.marks)]
    if known:
        return max(known, key=lambda family: len(family.marks))
    share, near = max(
        ((sum(mark in has for mark in family.marks) / len(family.marks), family) for family in marked),
        key=lambda pair: pair[0],
    )
    if not share:
        raise RecipeError(f"{where} is of no family that is known: set model.style to one of {', '.join(names())}")
    lacks = ", ".join(repr(mark) for mark in near.marks if mark not in has)
    raise RecipeError(
        f"{where} is of no family that is known; {near.name!r} is nearest, of which it lacks {lacks}: set "
        f"model.style = {near.name!r} to use that one's shipped template, or another of {', '.join(names())}"
    )
