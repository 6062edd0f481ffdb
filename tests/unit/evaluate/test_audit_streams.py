"""What the audit by replay draws by which random stream, what it may lose, and what it goes on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError
from retcon.evaluate.replay.audit import Auditing, Size, _open


def test_an_audit_of_an_earlier_version_is_gone_on_with_where_new_keys_have_their_defaults(tmp_path: Path) -> None:
    job = Auditing(load_recipe(None), tmp_path, tmp_path / "audit", Size(), lambda *_: [])
    _open(job, "model", [])
    file = job.out / "audit.json"
    about = json.loads(file.read_text())
    del about["rollout"]["min_p"]
    del about["rl"]["blame"]
    file.write_text(json.dumps(about))
    _open(job, "model", [])
    with pytest.raises(CheckpointError, match=r"other things: rl\.blame was None, is 0\.5: choose another --out"):
        _open(replace(job, recipe=load_recipe(None, ["rl.blame=0.5"])), "model", [])
    with pytest.raises(CheckpointError, match=r"other things: evaluate\.seed was 1000, is 7: choose another --out"):
        _open(replace(job, recipe=load_recipe(None, ["evaluate.seed=7"])), "model", [])
