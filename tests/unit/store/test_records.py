"""Reading and writing other people's files: every shape, whole or broken."""

from __future__ import annotations

import gzip
import io
import json
import math
import sys
import zipfile
import zlib
from hashlib import sha256
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from retcon.core.errors import MissingExtra, RecordError
from retcon.store.lines import PartialFile
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


@pytest.mark.parametrize("name", ["in.jsonl", "in.ndjson.gz"])
def test_lines_may_be_lists(tmp_path: Path, name: str) -> None:
    rows = [[{"role": "user"}], [], [{"role": "user"}, {"role": "assistant"}]]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert values(path) == rows
    assert copied(path) == data
    assert [record.where for record in open_source(path).records][1] == f"{path}, line 2"
    path.write_bytes(data.splitlines()[2])
    assert values(path) == rows[2], "one list alone is an array, whose items are the records"


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


@pytest.mark.parametrize("more", ["\n[3]", "]", "garbage", ", 3", "\xff"])
def test_what_follows_an_array_is_no_part_of_its_end(tmp_path: Path, more: str) -> None:
    path = tmp_path / "in.json"
    path.write_bytes(b"[1, 2]\n" + more.encode("latin-1"))
    with pytest.raises(RecordError, match=r"in\.json, item \d: (the array is over|the file cannot be read further)"):
        values(path)
    path.write_bytes(gzip.compress(b"[1, 2]")[:-6])
    with pytest.raises(RecordError, match=r"in\.json, (item 3|line 1): the file cannot be read"):
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


@pytest.mark.parametrize(("begin", "between", "what"), [("", "\n", "line"), ("[", ",", "item")])
def test_of_a_gzip_that_is_cut_off_all_is_read_that_stands_before(
    tmp_path: Path, begin: str, between: str, what: str
) -> None:
    path, records = tmp_path / "in.json.gz", [f'{{"a": "{sha256(bytes(n)).hexdigest()}"}}' for n in range(999)]
    packed = gzip.compress((begin + between.join(records)).encode())[:-5000]
    path.write_bytes(packed)
    whole = zlib.decompressobj(31).decompress(packed).count(b"}" + between.encode())
    read: list[bytes] = []
    with pytest.raises(RecordError, match=f"{what} {whole + 1}: the file cannot be read further"):
        read.extend(record.data.strip() for record in open_source(path).records)
    assert 0 < whole < 999
    assert read == [record.encode() for record in records[:whole]]


def test_an_inspect_log_is_its_samples_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(LOG, indent=2))
    assert values(path) == LOG["samples"]
    assert copied(path) == path.read_bytes()


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
    with pytest.raises(RecordError, match="is not an inspect_ai log"):
        open_source(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("name", ["in.jsonl", "in.json"])
def test_utf_16_and_utf_32_are_refused_with_what_to_do(tmp_path: Path, name: str, encoding: str) -> None:
    (path := tmp_path / name).write_bytes('\ufeff{"messages":\r\n []}\r\n'.encode(encoding))
    known = encoding[:6].upper()
    with pytest.raises(RecordError, match=rf"{name}: it is {known}, and not UTF-8: iconv -f {known} "):
        open_source(path)


@pytest.mark.parametrize(("name", "hint"), [("a.arrow", "to_parquet"), ("a.xz", "xz -d")])
def test_other_kinds_of_files_are_refused_with_what_to_do(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(RecordError, match=hint):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_a_partial_file_is_gone_on_with_from_where_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    first = PartialFile(path)
    first.out.write(b"one\n")
    size = first.pause()
    with first.partial.open("ab") as file:
        file.write(b"torn")
    assert not path.exists()
    second = PartialFile(path, size)
    second.out.write(b"two\n")
    second.commit()
    data = path.read_bytes()
    assert data.startswith(b"one\n") is (name == "out.jsonl")
    assert b"".join(record.data for record in open_source(path).records) == b"one\ntwo\n"
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with pytest.raises(RecordError, match=r"cannot be written|shorter"):
        PartialFile(path, 10**6)


def zstd_zip(path: Path, members: dict[str, bytes]) -> None:
    """A zip whose members are compressed as newer versions of inspect do, which Python's zipfile cannot write."""
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            file.writestr(info, zstandard.ZstdCompressor().compress(data))
            info.compress_type, info.CRC, info.file_size = 93, zlib.crc32(data), len(data)


def test_an_eval_archive_compressed_with_zstd_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    samples = {f"samples/{n}_epoch_1.json": json.dumps({"id": n, "text": "é" * 2000}).encode() for n in (1, 2)}
    zstd_zip(path, {"header.json": b"{}", **samples})
    assert [record.data for record in open_source(path).records] == list(samples.values())
    with zipfile.ZipFile(io.BytesIO(copied(path))) as file:
        assert {name: file.read(name) for name in samples} == samples
    zstd_zip(path, {"samples/1_epoch_1.json": b"{}"})
    data = bytearray(path.read_bytes())
    data[data.index(b"\x28\xb5\x2f\xfd") + 5] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"log\.eval, samples/1_epoch_1\.json: "):
        values(path)


def test_zstd_is_seen_from_its_bytes_in_one_frame_or_several(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    pack = zstandard.ZstdCompressor().compress
    path.write_bytes(pack(b'{"a": 1}\n{"a"') + pack(b": 2}\n"))
    assert values(path) == [{"a": 1}, {"a": 2}]
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0size"  # as pzstd writes them
    path.write_bytes(skipped + pack(b'{"a": 1}\n') + skipped + pack(b'{"a": 2}\n') + skipped)
    assert values(path) == [{"a": 1}, {"a": 2}]
    path.write_bytes(pack(b'{"a": 1}\n' * 9999)[:-12])
    with pytest.raises(RecordError, match="cannot be read"):
        values(path)


ROWS: list[dict[str, object]] = [
    {"id": n, "messages": [{"role": "user", "content": str(n), "calls": None if n % 2 else [{"a": n}]}], "raw": b"\xff"}
    for n in range(700)
]


def parquet(path: Path, rows: list[dict[str, object]], **options: object) -> None:
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata({"huggingface": "{}"})
    pyarrow.parquet.write_table(table, path, **options)


def test_rows_of_parquet_are_records_and_what_nothing_changes_keeps_its_type(tmp_path: Path) -> None:
    path, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet(path, ROWS, compression="zstd")
    source = open_source(path)
    with out.open("wb") as file:
        write = writer(source, file, kind=".parquet")
        write.begin()
        for record in source.records:
            value = json.loads(record.data)
            if value["id"] == 500:
                continue  # left out
            new = (
                json.dumps(value | {"messages": value["messages"] * 2}).encode() if value["id"] == 301 else record.data
            )
            write.add(record, new)
        write.end()
    written = pyarrow.parquet.read_table(out)
    assert written.schema.equals(pyarrow.parquet.read_table(path).schema, check_metadata=True)
    expected = [row for row in ROWS if row["id"] != 500]
    expected[301] = {**ROWS[301], "messages": ROWS[301]["messages"] * 2}  # type: ignore[operator]
    assert written.to_pylist() == expected
    assert pyarrow.parquet.ParquetFile(out).metadata.row_group(0).column(0).compression == "ZSTD"


def test_any_records_become_parquet_whose_columns_are_known_at_the_end(tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", io.BytesIO()
    rows = [{"a": n} if n < 300 else {"a": n + 0.5, "b": ["x"]} for n in range(600)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(path)
    write = writer(source, out, kind=".parquet")
    write.begin()
    for record in source.records:
        write.add(record, record.data)
    write.end()
    found = pyarrow.parquet.read_table(io.BytesIO(out.getvalue())).to_pylist()
    assert found == [{"a": row["a"], "b": row.get("b")} for row in rows]


def test_records_that_no_columns_can_hold_are_refused_with_what_can(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": "text"}\n{"a": ["list"]}\n')
    source = open_source(path)
    write = writer(source, io.BytesIO(), kind=".parquet")
    for record in source.records:
        write.add(record, record.data)
    with pytest.raises(RecordError, match=r"records 1 to 2 do not fit into columns.*write \.jsonl"):
        write.end()


def test_nan_becomes_nan_in_parquet(tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", io.BytesIO()
    path.write_text('\ufeff{"a": NaN}\n{"a": 1.5}\n', "utf-8")
    source = open_source(path)
    write = writer(source, out, kind=".parquet")
    write.begin()
    for record in source.records:
        write.add(record, record.data)
    write.end()
    first, second = pyarrow.parquet.read_table(io.BytesIO(out.getvalue())).column("a").to_pylist()
    assert (math.isnan(first), second) == (True, 1.5)


@pytest.mark.parametrize(
    ("value", "why"), [(r'"\ud83d"', "surrogates not allowed"), ("{}", "no child field"), ("[{}]", "no child field")]
)
def test_what_parquet_knows_no_type_for_is_refused_with_what_can_hold_it(tmp_path: Path, value: str, why: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"a": {value}}}\n')
    source = open_source(path)
    write = writer(source, io.BytesIO(), kind=".parquet")
    for record in source.records:
        write.add(record, record.data)
    with pytest.raises(RecordError, match=rf"do not fit into columns.*{why}.*write \.jsonl"):
        write.end()


@pytest.mark.parametrize("module", ["pyarrow", "zstandard"])
def test_a_package_that_is_not_there_is_named(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ("in.parquet" if module == "pyarrow" else "in.jsonl.zst")
    path.write_bytes(zstandard.ZstdCompressor().compress(b"{}\n"))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"in\..*pip install .*\[formats\]"):
        open_source(path)


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_an_array_is_copied_to_the_byte(tmp_path: Path, indent: int | str | None) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps([{"a": [1, {"b": "é"}]}, {}, {"c": 1.50}], indent=indent) + "\n\n")
    assert copied(path) == path.read_bytes()


def test_a_document_is_copied_to_the_byte_and_nan_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{\n  "messages": [],\n  "score": NaN\n}\n')
    assert copied(path) == path.read_bytes()


def test_nan_in_an_inspect_log_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{"eval": {"a": 1}, "samples": [{"score": NaN}, {"b": "],"}], "stats": {"mean": -Infinity}}')
    records = [record.data for record in open_source(path).records]
    assert records == [b'{"score": NaN}', b'{"b": "],"}']
    assert copied(path) == path.read_bytes()


def test_an_inspect_log_that_has_its_samples_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{"eval": {}, "samples": [1], "samples": [2]}')
    with pytest.raises(RecordError, match=r"log\.json, samples: this key, or one before it, stands in the log twice"):
        open_source(path)
