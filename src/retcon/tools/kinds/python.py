"""Python, with a memory where `sandbox.sessions` says so."""

from __future__ import annotations

from retcon.core.schema import ToolSpec
from retcon.tools.kind import ToolKind, ToolSetup
from retcon.tools.python import PythonTool
from retcon.tools.schema import python_spec
from retcon.tools.sessions import PythonSessions
from retcon.tools.types import StatefulTool, Tool


class Python(ToolKind):
    """`tools = ["python"]`."""

    def spec(self, *, sessions: bool) -> ToolSpec:
        return python_spec(keeps_state=sessions)

    def build(self, setup: ToolSetup) -> Tool | StatefulTool:
        if setup.sessions:
            return PythonSessions(setup.sandbox, output_chars=setup.output_chars)
        return PythonTool(setup.sandbox, output_chars=setup.output_chars, reuse=setup.reuse)
