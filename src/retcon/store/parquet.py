"""Parquet rows as JSON, and back; unchanged rows keep their columns."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from retcon.core.errors import MissingExtra, RecordError
from retcon.core.installing import how_to_install

Shape = Literal["lines", "array", "document", "log", "eval", "parquet", "dump", "session"]
"""`session`: lines that together are one transcript or several in a row, as in logs of agents."""
WHOLE: frozenset[Shape] = frozenset({"log", "eval", "parquet", "dump"})
"""Shapes that are written at once and cannot be resumed."""


class Record(NamedTuple):
    """One JSON value of a file. data: its bytes; a session has several lines. number: 1-based; of a session's first
    line. kind: of the numbered unit, or the member of an archive. lead: of an array's item or sample, the bytes between
    it and the one before."""

    data: bytes
    number: int
    file: str
    kind: str = "line"
    lead: bytes = b""

    @property
    def where(self) -> str:
        """Return file and line, item or sample, for messages."""
        if self.kind in ("line", "item", "sample", "row"):
            return f"{self.file}, {self.kind} {self.number}"
        if self.kind == "session" and self.number > 1:
            return f"{self.file}, session from line {self.number}"
        return f"{self.file}, {self.kind}"


class Writer(Protocol):
    """Base of writers of a shape: `begin`, `add` and `end` together write the file."""

    def begin(self) -> None: ...

    def add(self, record: Record, data: bytes) -> None:
        """Write a record. data: its new bytes, or `record.data` itself if unchanged."""
        ...

    def end(self) -> None: ...

    def drop(self) -> None:
        """Release all resources; a file without its end is incomplete."""
        return


@dataclass(slots=True)
class Source:
    """A file that is being read. read: bytes read so far, for progress.

    around: of a log, the bytes before and after its array of samples. tail: of an array, the bytes after its last item,
    once that was read. table: of Parquet and of a dump, the rows or samples that its writer needs beside their JSON.
    """

    path: Path
    shape: Shape
    records: Iterator[Record]
    read: Callable[[], int]
    around: tuple[bytes, bytes] = (b"", b"")
    tail: list[bytes] = field(default_factory=list)
    table: object = None

    def close(self) -> None:
        """Close the file, even if it was not read to its end."""
        if isinstance(self.records, Generator):
            self.records.close()


_ROWS = 256
_WHOLE = 2.0**53
_Read = Callable[[Any], Any]
_Key: TypeAlias = tuple[str, bytes]
"""The name of the nearest field, and the JSON of a value in it."""


def parquet_source(path: Path) -> Source:
    """Open a Parquet file. Raises RecordError if it cannot be read, MissingExtra without pyarrow."""
    import_arrow(str(path))
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is not a readable Parquet file: {error}") from error
    rows = Rows(path, file)
    size = path.stat().st_size
    return Source(path, "parquet", rows.records(), lambda: int(size * rows.share), table=rows)


class Rows:
    """Rows of a Parquet file. share: how much of them was read as records."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self.schema = file.schema_arrow
        self.share = 0.0
        first = file.metadata.row_group(0) if file.metadata.num_row_groups else None
        codec = first.column(0).compression.lower() if first is not None and first.num_columns else "snappy"
        self.codec = "none" if codec == "uncompressed" else codec

    def records(self) -> Iterator[Record]:
        """Yield each row as a JSON object. Raises RecordError if a part cannot be read or encoded."""
        import pyarrow

        number = 0
        total = max(1, self._file.metadata.num_rows)
        try:
            for _, batch in self.groups():
                for row in rows_of(batch):
                    number += 1
                    yield Record(_json(row, f"{self._path}, row {number}"), number, str(self._path), "row")
                self.share = number / total
        except (pyarrow.ArrowException, OSError) as error:
            raise RecordError(f"{self._path}, row {number + 1}: the file cannot be read further: {error}") from error

    def groups(self) -> Iterator[tuple[int, Any]]:
        """Yield batches of columns, with the number of rows before each. Restarts at each call."""
        before = 0
        for batch in self._file.iter_batches(batch_size=_ROWS):
            yield before, batch
            before += batch.num_rows


class ColumnsError(RecordError):
    """Rows, not just one of them, do not fit into the columns."""


class RowsWriter(Writer):
    """Writer of a file with the columns of another. It rereads the rows, as records may be far ahead."""

    def __init__(self, rows: object, out: IO[bytes]) -> None:
        if not isinstance(rows, Rows):
            raise TypeError(f"the source is not Parquet: found {type(rows).__name__}")
        import pyarrow.parquet as pq

        self._schema = rows.schema
        self._writer = pq.ParquetWriter(out, rows.schema, compression=rows.codec)
        self._groups = rows.groups()
        self._group: tuple[int, Any] | None = None
        self._kept: list[tuple[int, dict[int, Any]]] = []
        """Rows of the group, each with its new columns by index."""

    def begin(self) -> None:
        """Write nothing: the columns come with the first rows."""

    def add(self, record: Record, data: bytes) -> None:
        """Keep a row. Raises RecordError, and skips it, if the columns cannot hold the repaired value."""
        while self._group is None or record.number > self._group[0] + self._group[1].num_rows:
            self._flush()
            self._group = next(self._groups)
        before, batch = self._group
        index = record.number - 1 - before
        new = {} if data is record.data else self._changed(batch.slice(index, 1), record, data)
        self._kept.append((index, new))

    def end(self) -> None:
        self._flush()
        self._writer.close()

    def drop(self) -> None:
        self._writer.is_open = False  # or it would end the file when it is collected, and that may be closed

    def _flush(self) -> None:
        if self._group is None or not self._kept:
            return
        import pyarrow

        table = _rows_at(pyarrow.Table.from_batches([self._group[1]]), [index for index, _ in self._kept])
        for n in {n for _, new in self._kept for n in new}:
            column = _replaced(table.column(n), {at: new[n] for at, (_, new) in enumerate(self._kept) if n in new})
            table = table.set_column(n, self._schema.field(n), column)
        try:
            # Arrow casts no list of objects with a field that is null in all of them, even to the type that it has.
            self._writer.write_table(table if table.schema.equals(self._schema) else table.cast(self._schema))
        except pyarrow.ArrowException as error:
            raise ColumnsError(f"the rows cannot be written as the columns that they came in: {error}") from error
        self._kept = []

    def _changed(self, row: Any, record: Record, data: bytes) -> dict[int, Any]:
        """Return a row's changed columns by index, each an array of one."""
        import pyarrow

        new, old = msgspec.json.decode(data), msgspec.json.decode(record.data)
        columns = {}
        for n, part in enumerate(self._schema):
            value, was = new.get(part.name), old[part.name]
            if value == was:
                continue
            (raw,) = row.column(n).to_pylist()
            try:
                value = _restored(value, _known(raw, was), part.type)
                column = pyarrow.array([value], type=_stored(part.type))
                columns[n] = column if column.type == part.type else column.cast(part.type)
            except (pyarrow.ArrowException, TypeError, ValueError) as error:
                why = f"column {part.name!r} cannot hold what was repaired: {error}"
                raise RecordError(f"{record.where}: {why}") from error
        return columns


class ParquetWriter(Writer):
    """Writer of any records as rows, spooled until column types are known."""

    def __init__(self, out: IO[bytes]) -> None:
        import_arrow("Parquet")
        import tempfile

        self._out = out
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end` or `drop`
        self._schema: Any = None
        self._waiting: list[dict[str, Any]] = []
        self._seen = 0

    def begin(self) -> None:
        """Write nothing: the columns are not known yet."""

    def add(self, record: Record, data: bytes) -> None:
        row = _value(data)
        if not isinstance(row, dict):
            raise RecordError(f"{record.where}: a row of Parquet is an object, found {type(row).__name__}")
        self._spool.write(json.dumps(row).encode() + b"\n")
        self._waiting.append(row)
        if len(self._waiting) == _ROWS:
            self._learn()

    def end(self) -> None:
        import pyarrow
        import pyarrow.parquet as pq

        with self._spool:
            self._learn()
            schema = self._schema if self._schema is not None else pyarrow.schema([])
            self._spool.seek(0)
            try:
                with pq.ParquetWriter(self._out, schema, compression="zstd") as file:
                    while rows := [_value(line) for line in islice(self._spool, _ROWS)]:
                        file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            except pyarrow.ArrowException as error:  # an object that is empty in every record
                raise RecordError(f"the records do not fit into columns: {error}; write .jsonl") from error

    def drop(self) -> None:
        with suppress(OSError):  # of a full disk
            self._spool.close()

    def _learn(self) -> None:
        """Widen the columns to the waiting rows. Raises ColumnsError if one would need two types."""
        import pyarrow

        try:
            names = dict.fromkeys(name for row in self._waiting for name in row)
            found = pyarrow.schema([(n, pyarrow.array([row.get(n) for row in self._waiting]).type) for n in names])
            if self._schema is not None:
                found = pyarrow.unify_schemas([self._schema, found], promote_options="permissive")
        except (pyarrow.ArrowException, TypeError, OverflowError, UnicodeEncodeError) as error:
            raise ColumnsError(
                f"records {self._seen + 1} to {self._seen + len(self._waiting)} do not fit into columns, which have "
                f"one type each: {error}; write .jsonl"
            ) from error
        self._schema = found
        self._seen += len(self._waiting)
        self._waiting = []


def _rows_at(table: Any, indices: list[int]) -> Any:
    """Return some rows of a table, in order; also if Arrow cannot `take` a column's type, such as views."""
    import pyarrow

    if indices == list(range(table.num_rows)):
        return table
    try:
        return table.take(indices)
    except pyarrow.ArrowNotImplementedError:
        return pyarrow.concat_tables([table.slice(index, 1) for index in indices])


def _replaced(column: Any, values: Mapping[int, Any]) -> Any:
    """Replace some values of a column, each by an array of one. values: by index, ascending."""
    import pyarrow

    chunks, before = [], 0
    for at, value in values.items():
        chunks += [*column.slice(before, at - before).chunks, value]
        before = at + 1
    return pyarrow.chunked_array([*chunks, *column.slice(before).chunks], type=column.type)


def _known(raw: Any, read: Any) -> dict[_Key, Any]:
    """Map the JSON of a value and its parts to Arrow's values, without ambiguous ones."""
    known: dict[_Key, Any] = {}
    unclear = set()
    for key, part in _parts(raw, read, ""):
        other = known.setdefault(key, part)
        if other is not part and repr(other) != repr(part):  # such as NaN and null; and NaN is not equal to itself
            unclear.add(key)
    return {key: part for key, part in known.items() if key not in unclear}


def _parts(raw: Any, read: Any, name: str) -> Iterator[tuple[_Key, Any]]:
    """Yield a value of Arrow's and its parts. read: the value from JSON, where a map is a list of lists."""
    if isinstance(raw, str | int) and raw == read:
        return
    yield (name, msgspec.json.encode(read)), raw
    if isinstance(raw, dict):
        for part, value in raw.items():
            yield from _parts(value, read[part], part)
    elif isinstance(raw, list | tuple):
        for one, its in zip(raw, read, strict=True):
            yield from _parts(one, its, name)


def _restored(value: Any, known: Mapping[_Key, Any], type: Any, name: str = "") -> Any:
    """Convert a repaired value from JSON, with Arrow's own values for unchanged parts: JSON lacks bytes, times,
    decimals, maps and NaN. If the type is JSON text, other values become such text."""
    key = name, msgspec.json.encode(value)
    if key in known:
        return known[key]
    if _is_json(type):
        return None if value is None else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        types = {part.name: part.type for part in getattr(type, "fields", ())}
        return {part: _restored(its, known, types.get(part), part) for part, its in value.items()}
    inner = getattr(type, "value_type", None)
    return [_restored(one, known, inner, name) for one in value] if isinstance(value, list) else value


def _is_json(type: Any) -> bool:
    """Whether values are JSON text, as `datasets` and DuckDB write columns of several types."""
    return getattr(type, "extension_name", None) == "arrow.json"


def _stored(type: Any) -> Any:
    """Replace JSON by plain text in a type, as Arrow builds no nested extension types from Python."""
    import pyarrow

    if _is_json(type):
        return type.storage_type
    if pyarrow.types.is_struct(type):
        return pyarrow.struct([part.with_type(_stored(part.type)) for part in type])
    return pyarrow.list_(_stored(type.value_type)) if pyarrow.types.is_list(type) else type


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Convert a table or batch of Arrow's to dicts. UTF-8 bytes become text, floats of fewer than 64 bits their
    shortest decimals (0.1, not 0.10000000149011612), and JSON text its value."""
    rows: list[dict[str, Any]] = table.to_pylist()
    read = row_reader(table.schema, _leaf)
    return [read(row) for row in rows]


def row_reader(schema: Any, leaf: Callable[[Any], _Read | None]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a converter of rows, nested values included. leaf: converter of a type, None to keep values."""
    read = _of_struct({field.name: _reader(field.type, leaf) for field in schema})
    return (lambda row: row) if read is None else read


def _reader(type: Any, leaf: Callable[[Any], _Read | None]) -> _Read | None:
    """Return the converter of a type, None to keep values; leaf: see `row_reader`."""
    from pyarrow import types

    if (read := leaf(type)) is not None:
        return read
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        return _of_list(_reader(type.value_type, leaf))
    return _of_struct({part.name: _reader(part.type, leaf) for part in type}) if types.is_struct(type) else None


def _leaf(type: Any) -> _Read | None:
    """Return the converter of a type without parts, for `rows_of`."""
    from pyarrow import types

    if types.is_float32(type) or types.is_float16(type):
        return lambda value: value if value is None else _shortest(value, "f" if types.is_float32(type) else "e")
    if any(
        of(type) for of in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    ):
        return _text
    return _of_json if _is_json(type) else None


def _of_list(read: _Read | None) -> _Read | None:
    return None if read is None else lambda value: value if value is None else [read(item) for item in value]


def _of_struct(parts: dict[str, _Read | None]) -> _Read | None:
    reads = {name: read for name, read in parts.items() if read is not None}
    if not reads:
        return None
    return lambda value: value and value | {name: read(value[name]) for name, read in reads.items()}


def _shortest(value: float, code: str) -> float:
    """Return the shortest decimal of a float. code: of `struct`, for its width."""
    if value.is_integer() and abs(value) < _WHOLE:
        return value
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack(code, short) == struct.pack(code, value):
                return short
        except OverflowError:  # rounded up beyond the greatest
            continue
    return value


def _of_json(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError as error:
        raise import_arrow("JSON").ArrowInvalid(f"{value!r:.60} is not JSON, its column's type: {error}") from None


def _text(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def import_arrow(what: str) -> ModuleType:
    """Import pyarrow. what: the file that needs it, for the message. Raises MissingExtra if it is missing."""
    try:
        package: ModuleType = importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingExtra(f"{what} needs pyarrow to be read and written: {how_to_install('formats')}") from error
    return package


def _value(data: bytes) -> Any:
    """Decode a record, NaN included, which is not standard JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data)


def _json(row: dict[str, Any], where: str) -> bytes:
    try:
        return msgspec.json.encode(row, enc_hook=str)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError) as error:
        raise RecordError(f"{where}: it cannot be written as JSON: {error}") from error
