"""What a recipe names when it names a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retcon.core.registry import Registry
from retcon.core.schema import ToolSpec
from retcon.sandbox.types import Limits, Sandbox
from retcon.tools.types import StatefulTool, Tool


@dataclass(frozen=True, slots=True)
class ToolSetup:
    """What a tool is built with. output_chars: characters of an observation at most. sessions: whether a tool that can
    keep state between the calls of a trajectory is to. reuse: the limits of all calls, where one that was made
    before, and can come to but one thing, is to be answered with that."""

    sandbox: Sandbox
    output_chars: int
    sessions: bool = False
    reuse: Limits | None = None


class ToolKind:
    """A tool that a recipe can name (`rollout.tools`): the one subclass in a file of `tools/kinds`, or anywhere, by its
    import path."""

    kinds: ClassVar[Registry[ToolKind]]

    def spec(self, *, sessions: bool) -> ToolSpec:
        """What the model is shown of it, before it is built. sessions: as in `ToolSetup`."""
        raise NotImplementedError

    def build(self, setup: ToolSetup) -> Tool | StatefulTool:
        raise NotImplementedError


ToolKind.kinds = Registry("tool", "retcon.tools.kinds", ToolKind)
