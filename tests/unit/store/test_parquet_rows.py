"""Rows of Parquet with a repair in them: what it does not touch is what Arrow held, whatever JSON makes of it."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from foreign import REPAIRED, answer, fails, messages, user, works
from retcon.purify.offline import Repairer
from retcon.store.parquet import rows_of
from retcon.transcripts.purification import Assignment, FileJob, JobStopped
from retcon.transcripts.purifier import purify_transcript

CLEAN = messages((user("?"), works("x = 1"), answer("1")))["messages"]
FAILING = messages(REPAIRED)["messages"]
LEFT = messages((user("?"), fails("f(2)"), answer("2")))["messages"]


def purified(path: Path, table: Any, **options: object) -> Any:
    """The table that becomes of one."""
    pyarrow.parquet.write_table(table, path)
    out = path.with_suffix(".out.parquet")
    one = Assignment([path], out, False, [out.name], Repairer(), **options)  # type: ignore[arg-type]
    FileJob(one)(lambda *_: None, lambda: False)
    return pyarrow.parquet.read_table(out)


@pytest.mark.parametrize("rows", [[CLEAN, CLEAN], [CLEAN, FAILING, CLEAN]])
def test_a_field_of_messages_may_be_null_in_every_row(tmp_path: Path, rows: list[Any]) -> None:
    table = pyarrow.table({"messages": [[item | {"name": None} for item in row] for row in rows]})
    found = purified(tmp_path / "in.parquet", table)
    assert found.schema.equals(table.schema)
    assert found.to_pylist()[0] == table.to_pylist()[0]
    assert found.to_pylist()[-1] == table.to_pylist()[-1]
    assert "sqroot" not in str(found.to_pylist())


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}), [{"bytes": b"\x89P\xff", "path": "a"}]),
        (pyarrow.timestamp("us", "UTC"), [datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)]),
        (pyarrow.decimal128(5, 2), [Decimal("0.25")]),
        (pyarrow.map_(pyarrow.string(), pyarrow.float64()), [[("k", 0.5)], [], None]),
        (pyarrow.list_(pyarrow.binary(2)), [[b"\xff\xfe", None]]),
        (pyarrow.float32(), [float(numpy.float32(0.1))]),
    ],
    ids=str,
)
def test_what_json_lacks_stays_beside_a_repair(tmp_path: Path, type: Any, values: list[Any]) -> None:
    rows = [
        [item | {"beside": values[n % len(values)], "cost": "0.25"} for n, item in enumerate(row)]
        for row in (CLEAN, FAILING)
    ]
    parts = [*pyarrow.array([CLEAN]).type.value_type, ("beside", type), ("cost", pyarrow.string())]
    table = pyarrow.table({"messages": pyarrow.array(rows, pyarrow.list_(pyarrow.struct(parts)))})
    found = purified(tmp_path / "in.parquet", table)
    clean, repaired = (row["messages"] for row in found.to_pylist())
    was_clean, was = (row["messages"] for row in table.to_pylist())
    assert clean == was_clean
    assert len(repaired) == len(was) - 2
    beside = {(item["role"], item["x-n"]): item["beside"] for item in was}
    assert [item["beside"] for item in repaired] == [beside[item["role"], item["x-n"]] for item in repaired]
    assert {item["cost"] for item in repaired} == {"0.25"}


@pytest.mark.parametrize("type", [pyarrow.string_view(), pyarrow.binary_view()], ids=str)
def test_columns_of_views_are_written_as_such(tmp_path: Path, type: Any) -> None:
    """As some writers of Parquet (DataFusion's) declare text, of which Arrow takes no single rows."""
    rows = [CLEAN, LEFT, FAILING, CLEAN]
    table = pyarrow.table({"messages": rows, "source": pyarrow.array(["a", "b", None, "d"], type)})
    for drop, wanted in ((False, [0, 1, 2, 3]), (True, [0, 2, 3])):
        found = purified(tmp_path / "in.parquet", table, drop_unrepaired=drop)
        assert found.schema.equals(table.schema)
        sources = table.column("source").to_pylist()
        assert found.column("source").to_pylist() == [sources[n] for n in wanted]
        assert "sqroot" not in str(found.column("messages").to_pylist()[-2])


def test_text_that_is_declared_as_bytes_is_read_as_text(tmp_path: Path) -> None:
    for type in (pyarrow.binary(), pyarrow.binary_view()):
        table = pyarrow.table({"text": pyarrow.array([b"print(1)"], type)})
        assert rows_of(table) == [{"text": "print(1)"}]


def test_nan_stays_beside_a_repair_and_null_stays_null(tmp_path: Path) -> None:
    rows = [[item | {"score": float("nan"), "other": [None, 0.5][n % 2]} for n, item in enumerate(FAILING)]]
    (row,) = purified(tmp_path / "in.parquet", pyarrow.table({"messages": rows})).to_pylist()
    assert all(math.isnan(item["score"]) for item in row["messages"])
    mixed = [[item | {"score": None if item["x-n"] else float("nan")} for item in FAILING]]
    (row,) = purified(tmp_path / "in.parquet", pyarrow.table({"messages": mixed})).to_pylist()
    assert [item["score"] is None for item in row["messages"]] == [False, *[True] * 3]


def test_a_repair_that_its_columns_cannot_hold_is_a_bad_record(tmp_path: Path) -> None:
    mask = pyarrow.array([[0, 1], [0, 1], [0, 1]], pyarrow.list_(pyarrow.int64(), 2))  # to be emptied, and of two
    table = pyarrow.table({"messages": [CLEAN, FAILING, CLEAN], "loss_mask": mask})
    path = tmp_path / "in.parquet"
    with pytest.raises(JobStopped, match=r"in\.parquet, row 2: column 'loss_mask' cannot hold what was repaired"):
        purified(path, table)
    found = purified(path, table, skip_bad=True)
    assert found.to_pylist() == [table.to_pylist()[n] for n in (0, 2)]


def encoded(value: Any, depth: int) -> Any:
    """The value with JSON text at a depth of lists."""
    return [encoded(one, depth - 1) for one in value] if depth else json.dumps(value, indent=1)


@pytest.mark.parametrize("storage", [pyarrow.string(), pyarrow.large_string()], ids=str)
@pytest.mark.parametrize("depth", [0, 1])
def test_messages_in_columns_of_json_are_read_and_repaired(tmp_path: Path, depth: int, storage: Any) -> None:
    """`datasets` writes a list of JSON where messages differ in type, DuckDB a column of JSON."""
    kind = pyarrow.json_(storage) if depth == 0 else pyarrow.list_(pyarrow.json_(storage))
    texts = pyarrow.array(
        [encoded(row, depth) for row in (CLEAN, FAILING, CLEAN)], pyarrow.list_(storage) if depth else storage
    )
    table = pyarrow.table({"messages": texts.cast(kind), "n": [1, 2, 3]})
    found = purified(tmp_path / "in.parquet", table)
    assert found.schema.equals(table.schema)
    (first, repaired, last), was = found["messages"].to_pylist(), table["messages"].to_pylist()
    assert (first, last) == (was[0], was[2])
    clean = purify_transcript({"messages": FAILING})[0]["messages"]  # type: ignore[index]
    assert (json.loads(repaired) if depth == 0 else list(map(json.loads, repaired))) == clean
    if depth:
        assert [text for text in repaired if text in was[1]] == [repaired[0], *repaired[2:]], (
            "what stays keeps its text"
        )


def test_a_column_of_json_that_holds_other_text_is_refused_by_row(tmp_path: Path) -> None:
    table = pyarrow.table({"messages": pyarrow.array(["[]", "{no JSON"], pyarrow.json_())})
    with pytest.raises(JobStopped, match=r"in\.parquet, row 1: .*'\{no JSON' is not JSON"):
        purified(tmp_path / "in.parquet", table)
