"""Outputs that never come to their end, and those in which nothing is left."""

from __future__ import annotations

import gc
import gzip
import json
import sys
import warnings
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from foreign import answer, fails, messages, user, works
from retcon.purify.offline import Repairer
from retcon.transcripts.purification import Assignment, FileJob, JobStopped

CLEAN = messages((user("?"), works("x = 1"), answer("1")))
LEFT = messages((user("?"), fails("f(2)"), answer("no")))


def purified(inputs: list[Path], out: Path, **options: object) -> None:
    folder = out.suffix == ""
    one = Assignment(inputs, out, folder, [path.name for path in inputs], Repairer(), **options)  # type: ignore[arg-type]
    FileJob(one)(lambda *_: None, lambda: False)


def broken(path: Path) -> Path:
    """A file of that kind whose second record is bad."""
    rows = [json.dumps(CLEAN), "{broken"]
    if path.suffix == ".eval":
        with zipfile.ZipFile(path, "w") as archive:
            for n, row in enumerate(rows):
                archive.writestr(f"samples/{n}_epoch_1.json", row)
    elif path.suffix == ".parquet":
        turns = [json.dumps(CLEAN["messages"]), "none"]
        pyarrow.parquet.write_table(pyarrow.table({"messages": turns}), path)
    else:
        path.write_text("\n".join(rows))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "out"), [("a.jsonl", "b.parquet"), ("a.eval", "b.eval"), ("a.parquet", "b.parquet")])
def test_a_bad_record_leaves_nothing_open_and_no_word_of_it(
    tmp_path: Path, name: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = broken(tmp_path / name)
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(JobStopped):
            purified([source], tmp_path / "out" / out)
        gc.collect()
    assert not said, said


def test_what_is_left_of_a_document_is_json_where_its_record_was_left_out(tmp_path: Path) -> None:
    bad = [tmp_path / "number.json", tmp_path / "words.traj"]
    bad[0].write_text('{"messages": 3}\n')
    bad[1].write_text("hello\n")
    purified(bad, tmp_path / "skipped", skip_bad=True)
    assert [json.loads((tmp_path / "skipped" / path.name).read_text()) for path in bad] == [[], []]
    purified(bad, tmp_path / "all.json.gz", skip_bad=True)
    assert json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes())) == []
    purified(bad, tmp_path / "all.jsonl", skip_bad=True)
    assert (tmp_path / "all.jsonl").read_bytes() == b"", "no line is JSON Lines"
    (tmp_path / "left.json").write_text(json.dumps(LEFT))
    purified([tmp_path / "left.json"], tmp_path / "dropped.json", drop_unrepaired=True)
    assert json.loads((tmp_path / "dropped.json").read_text()) == []
    purified([tmp_path / "dropped.json"], tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == b"[]\n"
    (tmp_path / "empty.json").touch()
    purified([tmp_path / "empty.json"], tmp_path / "as_it_was.json")
    assert (tmp_path / "as_it_was.json").read_bytes() == b""
