"""What a recipe's [repair] comes to."""

from __future__ import annotations

from retcon.config.schema import RepairSection
from retcon.purify.saar import Saar


def saar_of(section: RepairSection) -> Saar:
    """SAAR with the section's keys, whatever its kind and probability."""
    return Saar(section.attempts, section.gamma, section.lookahead, frozenset(section.failures))
