"""The families that are known: a module in `families` has its own, and no list of them stands anywhere."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from retcon.chat.family import Family
from retcon.core.errors import RecipeError
from retcon.core.registry import at_path, modules_of, unknown

AUTO = "auto"
FAMILIES = "retcon.chat.families"


def names() -> tuple[str, ...]:
    """What the families are called, in the order of the alphabet."""
    return modules_of(FAMILIES)


def named(style: str) -> Family:
    """The family of a name, or of an import path such as `my_package.my_module:MINE`. Raises RecipeError."""
    if style in names():
        family: Family = import_module(f"{FAMILIES}.{style}").FAMILY
        return family
    if ":" not in style:
        raise RecipeError(unknown("chat style", style, (AUTO, *names()), "my_package.my_module:MINE"))
    try:
        family = at_path(style)
    except ImportError as error:
        raise RecipeError(f"the chat style {style!r} cannot be imported: {error}") from error
    if not hasattr(family, "find_calls"):
        raise RecipeError(f"the chat style {style!r} is not a family: see retcon.chat.family.Family")
    return family


def template_of(style: str) -> str:
    """The chat template that a model which learns in a style is to have; empty for the one that it has."""
    return "" if style == AUTO else getattr(named(style), "template", "")


def recognised(has: str | Collection[str], where: str) -> Family:
    """The family whose own template this is, or whose marks all stand in it (or among a tokenizer's control tokens),
    the most marks first.

    Raises RecipeError that names the nearest family otherwise.
    """
    families = [named(name) for name in names()]
    for family in families:
        if family.template and family.template == has:
            return family
    marked = [family for family in families if family.marks]
    known = [family for family in marked if all(mark in has for mark in family.marks)]
    if known:
        return max(known, key=lambda family: len(family.marks))
    share, near = max(
        ((sum(mark in has for mark in family.marks) / len(family.marks), family) for family in marked),
        key=lambda pair: pair[0],
    )
    if not share:
        raise RecipeError(f"{where} is of no known family: set model.style to one of {', '.join(names())}")
    lacks = ", ".join(repr(mark) for mark in near.marks if mark not in has)
    raise RecipeError(
        f"{where} is of no known family; the nearest is {near.name!r}, of which it lacks {lacks}: set "
        f"model.style = {near.name!r} to use that one's shipped template, or another of {', '.join(names())}"
    )
