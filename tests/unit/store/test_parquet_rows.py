"""Rows of Parquet with a repair in them: what it does not touch is what Arrow held, whatever JSON makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from foreign import REPAIRED, answer, messages, user, works
from retcon.purify.offline import Offline
from retcon.transcripts.purifying.assignment import Assignment
from retcon.transcripts.purifying.purification import Purification

CLEAN = messages((user("?"), works("x = 1"), answer("1")))["messages"]
FAILING = messages(REPAIRED)["messages"]


def purified(path: Path, table: Any, **options: object) -> Any:
    """The table that becomes of one."""
    pyarrow.parquet.write_table(table, path)
    out = path.with_suffix(".out.parquet")
    one = Assignment([path], out, False, [out.name], Offline(), **options)  # type: ignore[arg-type]
    Purification(one)(lambda *_: None, lambda: False)
    return pyarrow.parquet.read_table(out)


@pytest.mark.parametrize("rows", [[CLEAN, CLEAN], [CLEAN, FAILING, CLEAN]])
def test_a_field_of_messages_may_be_null_in_every_row(tmp_path: Path, rows: list[Any]) -> None:
    table = pyarrow.table({"messages": [[item | {"name": None} for item in row] for row in rows]})
    found = purified(tmp_path / "in.parquet", table)
    assert found.schema.equals(table.schema)
    assert found.to_pylist()[0] == table.to_pylist()[0]
    assert found.to_pylist()[-1] == table.to_pylist()[-1]
    assert "sqroot" not in str(found.to_pylist())
