"""Reading and writing other people's files: every shape, whole or broken."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retcon.core.errors import RecordError
from retcon.store.partial import Partial
from retcon.store.records import open_source, writer
from strategies import json_values

LOG = {"version": 2, "eval": {"task": "t"}, "samples": [{"id": 1, "a": [1.0]}, {"id": 2}], "stats": {"n": 2}}


def values(path: Path) -> list[object]:
    return [json.loads(record.data) for record in open_source(path).records]


def copied(path: Path) -> bytes:
    source = open_source(path)
    out = io.BytesIO()
    write = writer(source, out)
    write.begin()
    for record in source.records:
        write.add(record, record.data)
    write.end()
    return out.getvalue()


@pytest.mark.parametrize("indent", [None, 2])
@settings(max_examples=30, deadline=None)
@given(items=st.lists(json_values, max_size=6))
def test_the_items_of_an_array_are_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, indent: int | None, items: list[object]
) -> None:
    path = tmp_path_factory.mktemp("a") / "in.json"
    path.write_text(json.dumps(items, indent=indent, ensure_ascii=False), "utf-8")
    assert values(path) == items
    assert json.loads(copied(path)) == items


def test_an_array_larger_than_the_window_is_read(tmp_path: Path) -> None:
    items = [{"text": "é" * size} for size in (10, 700_000, 3_000_000, 10, 400_000)]
    path = tmp_path / "in.json.gz"
    path.write_bytes(gzip.compress(json.dumps(items, ensure_ascii=False).encode()))
    assert values(path) == items


@pytest.mark.parametrize(
    ("text", "item"), [('[{"a": 1}, {"b" 2}]', 2), ('[{"a": 1}, {"b": 2}', 3), ('[{"a": 1', 1), ('[1, "\xff"]', 1)]
)
def test_a_broken_array_names_the_item(tmp_path: Path, text: str, item: int) -> None:
    path = tmp_path / "in.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=rf"in\.json, item {item}: "):
        values(path)


def test_lines_keep_their_numbers_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":  1}\n\n{"b": 2.50}')
    records = list(open_source(path).records)
    assert [(r.number, r.where) for r in records] == [(1, f"{path}, line 1"), (3, f"{path}, line 3")]
    assert copied(path) == b'{"a":  1}\n{"b": 2.50}\n'


def test_gzip_is_seen_from_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert values(path) == [{"a": 1}]
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 99)[:-12])
    with pytest.raises(RecordError, match="cannot be read"):
        values(path)


def test_a_document_is_one_record_and_json_lines_may_be_called_json(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"messages": []}, indent=2))
    assert values(path) == [{"messages": []}]
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert values(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1,\n')
    with pytest.raises(RecordError, match=r"in\.json: not JSON"):
        values(path)


def test_an_inspect_log_is_its_samples_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(LOG, indent=2))
    assert values(path) == LOG["samples"]
    out = json.loads(copied(path))
    assert out == LOG
    assert list(out) == list(LOG)


def test_an_eval_archive_is_its_samples_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", json.dumps({"eval": {}}))
        file.writestr("samples/1_epoch_1.json", json.dumps({"id": 1}))
        file.writestr("samples/2_epoch_1.json", json.dumps({"id": 2}))
    assert values(path) == [{"id": 1}, {"id": 2}]
    with zipfile.ZipFile(io.BytesIO(copied(path))) as file:
        assert sorted(file.namelist()) == ["header.json", "samples/1_epoch_1.json", "samples/2_epoch_1.json"]
        assert json.loads(file.read("samples/2_epoch_1.json")) == {"id": 2}
    path.write_bytes(b"no zip")
    with pytest.raises(RecordError, match="is no inspect_ai log"):
        open_source(path)


@pytest.mark.parametrize(
    ("name", "hint"), [("a.jsonl.zst", "zstd -d"), ("a.parquet", "read_parquet"), ("a.xz", "xz -d")]
)
def test_other_kinds_of_files_are_refused_with_what_to_do(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(RecordError, match=hint):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_partial_file_is_gone_on_with_from_where_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    first = Partial(path)
    first.out.write(b"one\n")
    size = first.pause()
    with first.partial.open("ab") as file:
        file.write(b"torn")
    assert not path.exists()
    second = Partial(path, size)
    second.out.write(b"two\n")
    second.commit()
    data = path.read_bytes()
    assert (gzip.decompress(data) if name.endswith(".gz") else data) == b"one\ntwo\n"
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with pytest.raises(RecordError, match=r"cannot be written|shorter"):
        Partial(path, 10**6)
