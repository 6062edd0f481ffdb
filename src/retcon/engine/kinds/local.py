"""The local engine in a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from retcon.config.schema import EngineSection
from retcon.engine.types import EngineSetup

if TYPE_CHECKING:  # it brings torch
    from retcon.engine.local.engine import LocalEngine


class LocalSection(EngineSection):
    """Section `kind = "local"` of `LocalEngine`; its device and dtype stand in [compute]."""

    carries_over: ClassVar[bool] = True

    def build(self, setup: EngineSetup) -> LocalEngine:
        model = setup.model()  # names the missing extra without torch
        from retcon.engine.local.engine import LocalEngine

        return LocalEngine(
            model,
            max_len=setup.max_len,
            max_requests=setup.max_requests,
            kv_memory_mb=setup.kv_memory_mb,
            reserved=setup.reserved,
            tokenizer=setup.tokenizer,
        )
