"""No branching: every rollout starts at the prompt."""

from __future__ import annotations

from retcon.config.schema import StrategySection


class Independent(StrategySection):
    """`kind = "independent"`."""
