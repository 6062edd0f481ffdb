"""What a quickstart folder was made with, and how long it took over all its sessions."""

from __future__ import annotations

from pathlib import Path

from retcon.cli.common.targets import Book, Ledger, read_book
from retcon.cli.quickstart.plan import Plan

FILE = "quickstart.json"


class QuickstartBook(Book):
    """quickstart.json. hours, fitted: see `Plan`."""

    hours: float | None = None
    fitted: tuple[str, ...] | None = None


def open_ledger(plan: Plan) -> Ledger[QuickstartBook]:
    """The book of the plan's folder. Raises CheckpointError where other recipes, or another version, made that."""
    ledger = Ledger(plan.out / FILE, plan.targets, QuickstartBook)
    if plan.fitted is not None:
        ledger.book.hours, ledger.book.fitted = plan.hours, plan.fitted
    return ledger


def fitted_before(out: Path, hours: float | None) -> tuple[str, ...] | None:
    """The overrides that fitted the steps of the folder `out` to so many hours when it was begun; None where it was not
    begun, or with other hours. Raises CheckpointError for a book that cannot be read."""
    book = read_book(out / FILE, QuickstartBook)
    return book.fitted if book.hours == hours else None
