"""`make integration` has installed what these files import, so that there a file that is skipped is a fault."""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("RETCON_INTEGRATION"):
        return
    for report in reporter.stats.get("skipped", ()):
        if isinstance(report, pytest.CollectReport):
            reporter.write_line(f"skipped in `make integration`: {report.longrepr}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
