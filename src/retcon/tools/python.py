"""The Python tool: runs the code of a call in a sandbox and says what came out."""

from __future__ import annotations

from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Sandbox
from retcon.tools.schema import python_spec
from retcon.tools.wording import FAULTS, Wording


class PythonTool:
    """Implements `retcon.tools.types.Tool` over a sandbox: a fresh interpreter for every call.

    output_chars: characters of an observation at most (`retcon.tools.wording`). Random numbers follow from the call's
    id and its code, so that a rollout repeats.
    """

    def __init__(self, sandbox: Sandbox, *, name: str = "python", output_chars: int = 2000) -> None:
        self.name = name
        self.spec = python_spec(name)
        self._sandbox = sandbox
        self._wording = Wording(name, output_chars)

    async def __call__(self, call: ToolCall) -> Observation:
        malformed = self._wording.malformed(call)
        if malformed is not None:
            return malformed
        try:
            result = await self._sandbox.run(call.code, seed=derive("python", call.id, call.code))
        except FAULTS as error:
            return self._wording.fault(call, error)
        return self._wording.observation(call, result)
