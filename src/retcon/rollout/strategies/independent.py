"""Every rollout of a prompt from its beginning, none of which knows of the others."""

from __future__ import annotations

from retcon.config.schema import StrategySection


class Independent(StrategySection):
    """`kind = "independent"`."""
