"""The Tool protocol: a call in, an observation out."""

from __future__ import annotations

from typing import Protocol

from retcon.core.types import Observation, ToolCall


class Tool(Protocol):
    """A tool under one name. A fault of its own is an observation of status `infrastructure`, never an exception."""

    name: str

    async def __call__(self, call: ToolCall) -> Observation: ...
