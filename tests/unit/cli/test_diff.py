"""Which trajectories `retcon diff` shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from comparing import FIX, repaired, trajectory
from retcon.cli.app import app
from retcon.core.errors import RecordError
from retcon.store import jsonl


def test_an_id_means_its_trajectory_though_others_begin_with_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    jsonl.write(
        audit, [repaired("in.jsonl:10"), repaired("in.jsonl:1"), trajectory("in.jsonl:2", FIX), repaired("in.jsonl:20")]
    )

    def shown(id: str) -> list[str]:
        output = CliRunner().invoke(app, ["diff", str(audit), id], catch_exceptions=False).output
        return [line.partition(" · ")[0] for line in output.splitlines() if " · turn " in line]

    assert shown("in.jsonl:1") == ["in.jsonl:1"]
    assert shown("in.jsonl:") == ["in.jsonl:10", "in.jsonl:1", "in.jsonl:20"]
    with pytest.raises(RecordError, match=r"nothing is repaired in 'in\.jsonl:2'"):
        shown("in.jsonl:2")
