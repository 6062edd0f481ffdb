"""slime's rollout dumps: torch's pickles, read without running what is in them."""

from __future__ import annotations

import json
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foreign import FORMATS, REPAIRED, answer, user, works
from retcon.cli.app import app
from retcon.core.errors import MissingExtra, RecordError
from retcon.purify.offline import Repairer
from retcon.store.records import open_source
from retcon.transcripts.purification import Assignment, FileJob

torch = pytest.importorskip("torch", reason="a .pt is read with torch, of the [train] extra")
CLEAN = (user("1 + 1?"), works("print(1 + 1)", "2"), answer("2"))


def samples(*of: Any) -> list[dict[str, Any]]:
    """As `Sample.to_dict` of slime gives them, with a tensor of an image's in each."""
    pictures = {"pixel_values": torch.arange(4, dtype=torch.bfloat16)}
    return [{**FORMATS["slime"](steps), "multimodal_train_inputs": pictures, "index": n} for n, steps in enumerate(of)]


def dumped(folder: Path, value: object) -> Path:
    path = folder / "7.pt"
    torch.save(value, path)
    return path


def purified(source: Path, out: Path) -> Any:
    (count,) = FileJob(Assignment([source], out, False, [source.name], Repairer()))(lambda *_: None, lambda: False)
    assert (count.transcripts, count.shallow) == (2, 1)
    return out


def test_a_dump_comes_out_as_a_dump_with_its_tensors(tmp_path: Path) -> None:
    given = samples(CLEAN, REPAIRED)
    source = dumped(tmp_path, {"rollout_id": 7, "samples": given, "metadata": None})
    out = torch.load(purified(source, tmp_path / "out.pt"), weights_only=True)
    assert {name: out[name] for name in ("rollout_id", "metadata")} == {"rollout_id": 7, "metadata": None}
    clean, repaired = out["samples"]
    assert clean.keys() == repaired.keys() == given[0].keys()
    for was, now in zip(given, (clean, repaired), strict=True):
        wanted, found = (one.pop("multimodal_train_inputs")["pixel_values"] for one in (was, now))
        assert found.dtype == torch.bfloat16
        assert torch.equal(wanted, found)
    assert clean == given[0]
    assert "math.sqroot" not in repaired["response"]
    assert repaired["response"].count("<interpreter>") == 1
    for stale in ("tokens", "loss_mask", "rollout_log_probs"):
        assert given[1][stale]
        assert repaired[stale] == []
    assert repaired["prompt"] == given[1]["prompt"]


def test_a_dump_may_become_lines(tmp_path: Path) -> None:
    source = dumped(tmp_path, {"rollout_id": 7, "samples": samples(CLEAN, REPAIRED)})
    first, _ = map(json.loads, purified(source, tmp_path / "out.jsonl").read_text().splitlines())
    assert first["multimodal_train_inputs"] == {"pixel_values": [0.0, 1.0, 2.0, 3.0]}
    assert {**first, "multimodal_train_inputs": 0} == {**samples(CLEAN)[0], "multimodal_train_inputs": 0}


class Unknown:
    """Of a module that whoever reads the dump may not have, or that runs what it likes."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"samples": [{"response": Unknown()}]}, r"holds a test_dumps\.Unknown, which is neither a plain value nor"),
        (OrderedDict(weight=torch.ones(2)), r"not a rollout dump of slime: it has no list of samples \(found weight\)"),
        (torch.ones(2), "not a rollout dump of slime: .*found Tensor"),
        ({"samples": [1]}, "its samples are not dictionaries"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        open_source(dumped(tmp_path, value))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no zip", pickle.dumps([{"response": "x"}]), b"text"])
def test_what_is_no_file_of_torch_s_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "7.pt"
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"7\.pt is "):
        open_source(path)


def test_a_sample_that_no_json_can_hold_is_named(tmp_path: Path) -> None:
    source = open_source(dumped(tmp_path, {"samples": [{"response": "x"}, {"response": {1, 2}}]}))
    assert next(source.records).number == 1
    with pytest.raises(RecordError, match=r"7\.pt, sample 2: it cannot be written as JSON: it holds a set"):
        next(source.records)


def test_a_bad_sample_among_others_tells_that_a_dump_is_begun_again(tmp_path: Path) -> None:
    source = dumped(tmp_path, {"samples": [*samples(CLEAN), {"no": "transcript"}]})
    done = CliRunner().invoke(app, ["purify", str(source), "-o", str(tmp_path / "out.pt")])
    assert "cannot be continued (standard input and output, Parquet, inspect's logs, slime's dumps)" in str(
        done.exception
    )
    assert list(tmp_path.iterdir()) == [source]


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = dumped(tmp_path, {"samples": []})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"needs torch to be read: pip install .*\[train\]"):
        open_source(source)


@pytest.mark.parametrize(("kind", "name"), [("lines", "out.pt"), ("dump", "out.pt.gz")])
def test_a_pt_holds_what_came_from_one(tmp_path: Path, kind: str, name: str) -> None:
    source = dumped(tmp_path, {"samples": samples(CLEAN)})
    if kind == "lines":
        source = tmp_path / "in.jsonl"
        source.write_text(json.dumps(FORMATS["slime"](CLEAN)) + "\n")
    with pytest.raises(RecordError, match=r"a \.pt can only hold what came from one \.pt"):
        FileJob(Assignment([source], tmp_path / name, False, [source.name], Repairer()))(lambda *_: None, lambda: False)
    assert {path.name for path in tmp_path.iterdir()} <= {"7.pt", "in.jsonl"}
