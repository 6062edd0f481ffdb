"""Tools of a user's own, by import path."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from retcon.core.errors import RecipeError
from retcon.core.schema import ToolSpec
from retcon.tools.schema import check
from retcon.tools.types import StatefulTool, Tool


def load_tools(places: Iterable[str], *, taken: Iterable[str] = ()) -> dict[str, Tool | StatefulTool]:
    """The tools at these places (`my_package.my_module:Search`, a class without arguments or a tool), by name.

    taken: names that are. Raises RecipeError where one cannot be imported, is no tool, declares a schema that is none,
    or has the name of another.
    """
    tools: dict[str, Tool | StatefulTool] = {}
    names = set(taken)
    for place in places:
        tool = _load(place)
        if tool.name in names:
            raise RecipeError(f"rollout.tools: {place!r} has the name of another tool, {tool.name!r}")
        names.add(tool.name)
        tools[tool.name] = tool
    return tools


def _load(place: str) -> Tool | StatefulTool:
    module, colon, attribute = place.partition(":")
    if not colon:
        raise RecipeError(f"rollout.tools: {place!r} is no import path such as my_package.my_module:Search")
    try:
        tool = getattr(import_module(module), attribute)
        tool = tool() if isinstance(tool, type) else tool
    except (ImportError, AttributeError, TypeError) as error:
        raise RecipeError(f"rollout.tools: {place!r} cannot be imported: {error}") from error
    spec = getattr(tool, "spec", None)
    if not isinstance(spec, ToolSpec) or not (callable(tool) or isinstance(tool, StatefulTool)):
        raise RecipeError(f"rollout.tools: {place!r} is no tool: it needs a `spec` (ToolSpec) and an async `__call__`")
    if getattr(tool, "name", None) != spec.name:
        raise RecipeError(f"rollout.tools: {place!r} is called {getattr(tool, 'name', None)!r} and {spec.name!r}")
    check(spec)
    return tool
