"""Tools that a recipe can name, and how they are found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from retcon.core.errors import RecipeError, reraise_as
from retcon.core.registry import Registry, describe_object
from retcon.core.types import ToolSpec
from retcon.sandbox.types import Limits, Sandbox
from retcon.tools.schema import check_schema
from retcon.tools.types import StatefulTool, TaskTool, Tool


@dataclass(frozen=True, slots=True)
class ToolSetup:
    """Settings to build a tool with. output_chars: most characters of an observation. sessions: keep state between the
    calls of a trajectory, if the tool can. reuse: limits of all calls, if deterministic results are cached."""

    sandbox: Sandbox
    output_chars: int
    sessions: bool = False
    reuse: Limits | None = None


class ToolKind:
    """A tool that a recipe can name (`rollout.tools`): a file of `tools/kinds`, or an import path."""

    kinds: ClassVar[Registry[ToolKind]]

    def spec(self, *, sessions: bool) -> ToolSpec:
        """Return the spec that the model sees. sessions: see `ToolSetup`."""
        raise NotImplementedError

    def build(self, setup: ToolSetup) -> Tool | StatefulTool | TaskTool:
        raise NotImplementedError


ToolKind.kinds = Registry("tool", base=ToolKind)


def find_tools(names: Iterable[str]) -> list[ToolKind]:
    """Return the tools of these names, of `tools/kinds` or by import path.

    An import path (`my_package.my_module:Search`) names a `ToolKind`, a tool's class without arguments, or a tool.
    Raises RecipeError if one is unknown, cannot be imported, is not a tool or has an invalid schema, or two share a
    name.
    """
    kinds: dict[str, ToolKind] = {}
    for name in names:
        kind = _find(name)
        spec = kind.spec(sessions=False)
        if spec.name in kinds:
            raise RecipeError(f"rollout.tools: {name!r} has the name of another tool, {spec.name!r}: rename one")
        kinds[spec.name] = kind
    return list(kinds.values())


@dataclass(frozen=True, slots=True)
class _ReadyTool(ToolKind):
    """A tool that needs no building."""

    tool: Tool | StatefulTool

    def spec(self, *, sessions: bool) -> ToolSpec:
        return self.tool.spec

    def build(self, setup: ToolSetup) -> Tool | StatefulTool:
        return self.tool


def _find(name: str) -> ToolKind:
    if name in ToolKind.kinds.shipped:
        return ToolKind.kinds.find(name)()
    tool = ToolKind.kinds.load(name)
    with reraise_as(RecipeError, f"rollout.tools: {name!r}"):
        tool = tool() if isinstance(tool, type) else tool
    if isinstance(tool, ToolKind):
        return tool
    spec = getattr(tool, "spec", None)
    if not isinstance(spec, ToolSpec) or not (callable(tool) or isinstance(tool, StatefulTool)):
        raise RecipeError(
            f"rollout.tools: {name!r} is not a tool, which has a `spec` (ToolSpec) and an async `__call__`: it is "
            f"{describe_object(tool)}"
        )
    if getattr(tool, "name", None) != spec.name:
        raise RecipeError(f"rollout.tools: {name!r} is called {getattr(tool, 'name', None)!r} and {spec.name!r}")
    check_schema(spec)
    return _ReadyTool(tool)
