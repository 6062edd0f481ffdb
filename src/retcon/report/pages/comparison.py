"""report.html: one file that opens from disk and needs no network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from retcon.report.pages.markup import document
from retcon.report.panel import Report, panels
from retcon.store.whole import write_whole


def write_page(path: Path, report: Report) -> None:
    """Writes the page. Raises StorageError where it cannot be written."""
    write_whole(path, page(report))


def page(report: Report) -> str:
    """The whole page. Every text that comes from a run is escaped, and pictures are embedded."""
    arms, seeds = escape(", ".join(report.comparison.arms)), len(report.comparison.seeds)
    parts = [
        "<h1>What purification changes</h1>",
        f'<p class="soft">{arms}: trained from one cold start with {seeds} '
        f"seed{'s' if seeds > 1 else ''} each, in {report.comparison.seconds / 60:.1f} minutes.</p>",
    ]
    for panel in panels():
        if text := panel.html(report):
            parts += [f"<h2>{escape(panel.heading)}</h2>", text]
    return document(", ".join(report.comparison.arms), parts)
