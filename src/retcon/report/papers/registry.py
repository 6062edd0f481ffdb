"""The papers, by name."""

from __future__ import annotations

from retcon.report.papers.cleaner import CLEANER
from retcon.report.papers.rstar2 import RSTAR2
from retcon.report.papers.types import Paper

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (CLEANER, RSTAR2)}
