"""A tool whose programs call the model: of rollouts that have children without a sandbox."""

from __future__ import annotations

from retcon.core.types import Observation, ToolCall, ToolSpec
from retcon.tools.loading import ToolKind, ToolSetup
from retcon.tools.types import ModelCalls, TaskTool

SPEC = ToolSpec("python")


class Asking:
    """Implements `TaskTool` and `Tool`: each program calls the model twice and fails where it has no digit."""

    name, spec = SPEC.name, SPEC

    def __init__(self, model: ModelCalls | None = None) -> None:
        self._model = model

    def of(self, task: str, trajectory: str, model: ModelCalls | None = None) -> Asking:
        return Asking(model)

    async def __call__(self, call: ToolCall) -> Observation:
        assert self._model is not None
        await self._model.complete(call.id, ["go"])
        await self._model.recurse(call.id, ["go"])
        fails = not any(map(str.isdigit, call.code))
        text = "NameError: name 'a' is n" if fails else "1"
        return Observation(call.id, text, "error" if fails else "ok", "NameError" if fails else None)


class AskingKind(ToolKind):
    """`tools = ["asking:AskingKind"]`."""

    def spec(self, *, sessions: bool) -> ToolSpec:
        return SPEC

    def build(self, setup: ToolSetup) -> TaskTool:
        return Asking()
