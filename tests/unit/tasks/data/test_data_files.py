"""Files of tasks: every kind gives the same rows, and what is no such file is refused by name, line and column."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from datafiles import questions, read, tasks, write
from retcon.core.errors import MissingExtra
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.rows import read_rows
from retcon.tasks.data.settings import FileTaskSettings

ROWS = [{"question": 'Say "1,5",\ntwice: é', "answer": "1"}, {"question": "And 2?", "answer": "2"}]


def as_csv(delimiter: str = ",") -> bytes:
    out = io.StringIO()
    table = csv.DictWriter(out, ["question", "answer"], delimiter=delimiter)
    table.writeheader()
    table.writerows(ROWS)
    return out.getvalue().encode()


def as_parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra [formats], is not installed")
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), out)
    return out.getvalue()


def as_arrow(kind: str = "new_stream") -> bytes:
    """In the form that `datasets` writes, or in that of files."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra [formats], is not installed")
    table, out = pyarrow.Table.from_pylist(ROWS), io.BytesIO()
    with getattr(pyarrow.ipc, kind)(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    return out.getvalue()


def as_zstd() -> bytes:
    package = pytest.importorskip("zstandard", reason="zstandard, of the extra [formats], is not installed")
    return bytes(package.ZstdCompressor().compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", lambda: "".join(json.dumps(row) + "\n" for row in ROWS).encode()),
        ("a.json", lambda: json.dumps(ROWS, indent=1).encode()),
        ("b.json", lambda: "\n".join(json.dumps(row) for row in ROWS).encode()), ("a.csv", as_csv),
        ("b.csv", lambda: b"\xef\xbb\xbf" + as_csv()), ("a.tsv", lambda: as_csv("\t")), ("a.parquet", as_parquet),
        ("a.arrow", as_arrow), ("b.arrow", lambda: as_arrow("new_file")), ("a.jsonl.zst", as_zstd),
    ],
)  # fmt: skip
def test_every_kind_of_file_gives_the_same_tasks(name: str, data: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data())
    found = tasks(str(tmp_path / name))
    assert [(t.question.replace("\r\n", "\n"), t.answer) for t in found] == [(r["question"], r["answer"]) for r in ROWS]


def saved(folder: Path) -> Path:
    """As `save_to_disk` leaves it."""
    folder.mkdir(parents=True)
    (folder / "data-00000-of-00001.arrow").write_bytes(as_arrow())
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (folder / "dataset_info.json").write_text('{"features": {}}')
    return folder


def test_a_data_set_that_was_saved_to_disk_is_read_without_its_notes(tmp_path: Path) -> None:
    assert [t.answer for t in tasks(str(saved(tmp_path / "plain")))] == [r["answer"] for r in ROWS]
    for split in ("train", "test"):
        saved(tmp_path / "both" / split)
    (tmp_path / "both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(tasks(str(tmp_path / "both"))) == len(ROWS)
    found = FileTaskSettings(path=str(tmp_path / "both"), evaluation_split="test", overlap="allow").open()
    assert len(found.evaluation(9, 0)) == len(list(found.train(0))) == len(ROWS)
    with pytest.raises(DataError, match=r"both has no split 'tets' \(did you mean 'test'\?\); there are: train, test"):
        read(str(tmp_path / "both"), split="tets")
    (tmp_path / "both/dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match=r"dataset_dict\.json does not say which splits there are"):
        read(str(tmp_path / "both"))


def test_what_the_package_itself_saves_is_read(tmp_path: Path) -> None:
    package = pytest.importorskip("datasets", reason="datasets, of no extra, is not installed")
    package.disable_progress_bars()
    own = package.Dataset.from_list(ROWS)
    own.save_to_disk(tmp_path / "one", num_shards=2)
    package.DatasetDict(train=own, test=own).save_to_disk(tmp_path / "both")
    for name in ("one", "both"):
        found = [(t.question.replace("\r\n", "\n"), t.answer) for t in tasks(str(tmp_path / name))]
        assert found == [(r["question"], r["answer"]) for r in ROWS]


def test_a_broken_arrow_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(as_arrow()[:-40])
    with pytest.raises(DataError, match=r"a\.arrow, row \d+: the Arrow file cannot be read further"):
        read(str(tmp_path / "a.arrow"))
    (tmp_path / "a.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(DataError, match=r"a\.arrow, row 1: the Arrow file cannot be read further"):
        read(str(tmp_path / "a.arrow"))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b"\n \n", "a.jsonl is empty"),
        ("a.json", b"[]", "a.json is empty"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"question,answer\n", "a.csv is empty"),
        ("a.jsonl", b'{"question": "x"\n', "line 1: not JSON"),
        ("a.jsonl", b'{"question": "x", "answer": 1}\n"text"\n', "line 2: a row is a JSON object.*found str: 'text'"),
        ("a.jsonl", b'{"question": "x", "answer": 1}\n{"question": "caf\xe9"}\n',
         "line 2: not UTF-8 .byte 0xe9 .*LATIN1"),
        ("a.csv", b"question,answer\nx,1\ncaf\xe9,2\n", "line 3: not UTF-8 .byte 0xe9"),
        ("a.jsonl", '{"question": "x"}\n'.encode("utf-16"), "it is UTF-16, and not UTF-8: iconv"),
        ("a.csv", "question,answer\n".encode("utf-16"), "line 1: this is UTF-16"),
        ("a.jsonl", '{"question": "x"}\n'.encode("utf-32"), "it is UTF-32, and not UTF-8: iconv -f UTF-32"),
        ("a.csv", "question,answer\n".encode("utf-32"), "line 1: this is UTF-32.*iconv -f UTF-32"),
        ("a.csv", "question,answer\n".encode("utf-32-be"), "line 1: this is UTF-32"),
        ("a.csv", "question,answer\n".encode("utf-16-be"), "line 1: this is UTF-16"),
        ("a.jsonl", b'{"question": "x", "answer": "1\x00"}\n', "line 1: a NUL byte at position"),
        ("a.csv", b"question,answer\nx\x00,1\n", "line 2: a NUL byte at position 1"),
        ("a.csv", b"question,answer\nx,1\ny," + bytes(4096), "line 3: a NUL byte at position 2: .*damaged"),
        ("a.jsonl", b'{"question": "x", "answer": "1"}\n' + bytes(4096), "line 2: a NUL byte at position 0: .*damaged"),
        ("a.csv", "x\u4e00x\u0100,\u4e00\n".encode("utf-32-le"), "line 1: this is UTF-32"),
        ("a.json", b'{"data": [{"question": "x"}, {}]}',
         r"a.json is not a list of rows, but one JSON value, an object of data; write out the list alone: 'data' "),
        ("a.csv", b"question,answer\nx,1\ny,2,3\n",
         "line 3: 3 values, where the header names 2 columns .question, answer"),
        ("a.csv", b"question,question\nx,1\n", "line 1: two columns are named 'question'"),
        ("a.csv", b"question;answer\nx;1\n", "line 1: columns are divided by ';'"),
        ("a.csv", b'question,answer\nx,"1\n', "line 2: no CSV: .*is a quote not closed"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00broken", "cannot be read"),
        ("a.txt", b"x", r"files of this kind are not read; there are: \.jsonl"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_serve_says_why_and_where(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=said) as caught:
        read(str(tmp_path / name))
    assert name in str(caught.value)


def test_a_broken_parquet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow, of the extra [formats], is not installed")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"a\.parquet is not a readable Parquet file"):
        read(str(tmp_path / "a.parquet"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match=r"a\.parquet needs pyarrow .*pip install .*\[formats\]"):
        read(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("{}/problem.jsonl", r"problem\.jsonl does not exist \(did you mean 'problems\.jsonl'\?\)"),
        ("{}/problems", r"no tasks '.*problems'.*give a file"),
        ("numbrs", r"no tasks 'numbrs' \(did you mean 'numbers'\?\): give a file \(\.jsonl"),
        ("no_such_package:Tasks", "no_such_package:Tasks cannot be imported"),
        ("datafiles:Taks", r"datafiles has no 'Taks' \(did you mean 'Task'\?\)"),
        ("datafiles:questions", "datafiles:questions: it must make a task set without arguments"),
        ("datafiles:Path", "datafiles:Path is not a task set: it needs name, system, train"),
    ],
)
def test_a_path_that_is_nothing_brings_the_nearest(path: str, said: str, tmp_path: Path) -> None:
    write(tmp_path / "problems.jsonl", questions(1))
    path = path.format(tmp_path)
    with pytest.raises(DataError, match=said):
        read(path)


@pytest.mark.parametrize("key", ["sources", "against"])
def test_an_empty_name_is_not_the_working_directory(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    about = {"path": write(Path("a.jsonl"), questions(1)), "evaluation_share": 0, "against": ("",)}
    section = FileTaskSettings.model_validate(about if key == "against" else {key: [""], "evaluation_share": 0})
    with pytest.raises(DataError, match="against: an empty name" if key == "against" else "no tasks '': give a file"):
        section.open()


def test_a_folder_and_a_pattern_are_all_their_files_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/1.csv", "a.jsonl", "c.tsv", ".cache/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / "b/1.csv").write_text("question,answer\nq3,3\n")
    write(tmp_path / "a.jsonl", [{"question": "q1", "answer": "1"}, {"question": "q2", "answer": "2"}])
    (tmp_path / "c.tsv").write_text("question\tanswer\nq4\t4\n")
    write(tmp_path / ".cache/d.jsonl", questions(1))
    (tmp_path / "README.md").write_text("not rows")
    assert [t.question for t in tasks(str(tmp_path))] == ["q1", "q2", "q3", "q4"]
    assert [t.question for t in tasks(f"{tmp_path}/**/*.[ct]sv")] == ["q3", "q4"]
    assert [p.where for p in read(f"{tmp_path}/*.tsv").train] == [f"{tmp_path}/c.tsv, line 2"]
    assert read(f"{tmp_path}/*.tsv").name == tmp_path.name
    (tmp_path / "[1].jsonl").write_text('{"question": "q5", "answer": "5"}\n')
    assert [t.question for t in tasks(f"{tmp_path}/[1].jsonl")] == ["q5"], "a file that is there is itself"


def test_a_folder_and_a_pattern_without_rows_say_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file with rows \(\.jsonl, .*\), but nothing"):
        read(str(tmp_path))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"but notes\.txt"):
        read(f"{tmp_path}/*")
    write(tmp_path / "b.jsonl", [{"question": "q", "answer": "1"}])
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(DataError, match=r"a\.jsonl is empty"):
        read(str(tmp_path))


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_half_of_a_character_is_a_question_mark_as_for_a_tokenizer(kind: str, tmp_path: Path) -> None:
    """A text that was cut within an escaped emoji."""
    row = '{"id": "a\\ud83d", "question": "How? \\ud83d", "answer": "5", "\\udc00": [{"x": "\\ud83d\\ude00\\ud83d"}]}'
    (tmp_path / f"a.{kind}").write_text(f"[{row}]" if kind == "json" else row)
    (task,) = tasks(str(tmp_path / f"a.{kind}"))
    assert (task.id, task.question, task.answer) == ("a/a?", "How? ?", "5")
    assert task.meta["?"] == [{"x": "😀?"}]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_of_bytes_and_of_short_floats_are_read_as_they_were_meant(name: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra [formats], is not installed")
    answers, nested = pyarrow.array([0.1, 16777216.0, None], pyarrow.float32()), [{"x": b"\xc3\xa9"}, {"x": None}, None]
    lists = pyarrow.array([[0.3], [], None], pyarrow.list_(pyarrow.float32()))
    file = columns(tmp_path, name, question=[b"a", b"b", b"c"], answer=answers, about=nested, all=lists)
    assert [(one.question, one.answer) for one in tasks(file)] == [("a", "0.1"), ("b", "16777216")]
    rows = [row.columns for row in read_rows(tmp_path / name)]
    assert [row["about"] for row in rows] == [{"x": "é"}, {"x": None}, None]
    assert [row["all"] for row in rows] == [[0.3], [], None]


def columns(tmp_path: Path, name: str, **arrays: Any) -> str:
    """A file with these columns, in Parquet or as `save_to_disk` writes it."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra [formats], is not installed")
    from pyarrow import parquet

    table = pyarrow.table(arrays)
    if name.endswith(".parquet"):
        parquet.write_table(table, tmp_path / name)
    else:
        with pyarrow.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    return str(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    ("answer", "read"),
    [(time(9, 5), "09:05:00"), (date(2024, 5, 1), "2024-05-01"), (datetime(2024, 5, 1, 9, 5), "2024-05-01T09:05:00"),
     (timedelta(hours=2), "PT7200S")],
)  # fmt: skip
def test_answers_that_a_file_holds_as_times_are_refused(name: str, answer: object, read: str, tmp_path: Path) -> None:
    """What was written, such as 9:05, is not kept by these types; DuckDB takes them for columns of such texts."""
    said = rf"row 1: column 'answer' is of a type for times.* found '{read}': write the column as text"
    with pytest.raises(DataError, match=said):
        tasks(columns(tmp_path, name, question=["a"], answer=[answer]))
    said = rf"column 'reward_model\.ground_truth' is of a type for times.* found '{read}'"
    with pytest.raises(DataError, match=said):
        tasks(columns(tmp_path, name, prompt=["a"], reward_model=[{"ground_truth": answer}]))
    (task,) = tasks(columns(tmp_path, name, question=["a"], answer=["9:05"], at=[answer]))
    assert (task.answer, task.meta["at"]) == ("9:05", read)
