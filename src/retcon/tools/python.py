"""The Python tool: runs the code of a call in a sandbox and says what came out."""

from __future__ import annotations

from functools import partial

from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Limits, Result, Sandbox
from retcon.tools.repeats import Repeats
from retcon.tools.schema import python_spec
from retcon.tools.wording import FAULTS, Wording


class PythonTool:
    """Implements `retcon.tools.types.Tool` over a sandbox: a fresh interpreter for every call.

    output_chars: characters of an observation at most (`retcon.tools.wording`). reuse: the limits of all
    calls, where a program that was called before, and can come to but one thing, is to be answered with that
    (`retcon.tools.repeats`). Random numbers follow from the call's id and its code, so that a rollout repeats.
    """

    def __init__(
        self, sandbox: Sandbox, *, name: str = "python", output_chars: int = 2000, reuse: Limits | None = None
    ) -> None:
        self.name = name
        self.spec = python_spec(name)
        self._sandbox = sandbox
        self._wording = Wording(name, output_chars)
        self._repeats = None if reuse is None else Repeats(reuse)

    async def __call__(self, call: ToolCall) -> Observation:
        malformed = self._wording.malformed(call)
        if malformed is not None:
            return malformed
        try:
            if self._repeats is None:
                result = await self._run(call)
            else:
                result = await self._repeats.run(call.code, partial(self._run, call))
        except FAULTS as error:
            return self._wording.fault(call, error)
        return self._wording.observation(call, result)

    async def _run(self, call: ToolCall) -> Result:
        return await self._sandbox.run(call.code, seed=derive("python", call.id, call.code))
