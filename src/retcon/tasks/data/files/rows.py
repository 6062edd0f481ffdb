"""Rows of files: JSON Lines, a JSON array, CSV, Parquet, Arrow, plain or compressed, each with the line it stands in.

And their columns, by the names that settings give them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from glob import glob
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from retcon.core.errors import RecordError, nearest
from retcon.core.texts import counted
from retcon.store.compression import decompressed, plain_name, read_errors
from retcon.store.foreign.parquet import Rows, row_reader
from retcon.store.foreign.records import Record, marked_as, open_source
from retcon.tasks.data.conventions import others
from retcon.tasks.data.fields import Columns, DataError, Misfit, Row, text, written_out
from retcon.tasks.data.files.tables import TAB, records
from retcon.tasks.data.packaged.saved import ABOUT, SUFFIX, arrow_rows, moment_reader

SPLIT = "split"
TABLES = {".csv": ",", ".tsv": TAB}
SUFFIXES = (".jsonl", ".ndjson", ".json", *TABLES, ".parquet", SUFFIX)
"""Of files with rows, before the one of a compression (.gz, .zst)."""

_BLANK = bytes(8)
"""More NUL bytes together than letters of several bytes have: what a machine that went down had not yet written."""


def is_data_file(name: str) -> bool:
    """Whether a name ends as one of a file with rows."""
    return plain_name(name).endswith(SUFFIXES)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, in order, one in memory at a time; of a folder or a pattern (`shards/*.parquet`) those of all
    files with rows, in the order of their names.

    Raises DataError, which names file and line: for a file that is absent, empty, or of another kind, a folder or
    pattern without any; for what is not UTF-8, holds NUL bytes, or is no JSON object; for a CSV whose rows differ in
    length. MissingExtra where a kind takes a package that is not there.
    """
    yield from following(map(_rows_of, files_of(path)))


def files_of(path: Path) -> Sequence[Path]:
    """Those whose rows `read_rows` gives. Raises DataError for a folder or a pattern without any."""
    return [path] if (files := shards(path)) is None else files


def shards(path: Path) -> list[Path] | None:
    """The files that a folder or a pattern means, None where it is a file's own name. Raises DataError for none."""
    if is_pattern(str(path)):
        found = [Path(name) for name in glob(str(path), recursive=True)]  # noqa: PTH207 - of any root
    elif path.is_dir():
        found = [file for file in path.rglob("*") if not any(part[0] == "." for part in file.relative_to(path).parts)]
    else:
        return None
    files = sorted(file for file in found if is_data_file(file.name) and file.is_file())
    if any(file.suffix == SUFFIX for file in files):
        files = [file for file in files if file.name not in ABOUT]
    if not files:
        kinds = ", ".join(SUFFIXES)
        there = ", ".join(sorted(file.name for file in found)[:5]) or "nothing"
        raise DataError(f"{path}: there is no file with rows ({kinds}, also as .gz or .zst), but {there}")
    return files


def is_pattern(path: str) -> bool:
    """Whether a path means whatever files match it; one that is there is itself."""
    return any(sign in path for sign in "*?[") and not Path(path).exists()


def _rows_of(path: Path) -> Iterator[Row]:
    try:
        known = path.exists()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not known:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{path} does not exist{nearest(path.name, siblings)}")
    plain = plain_name(path.name)
    if not plain.endswith(SUFFIXES):
        kinds = ", ".join(SUFFIXES)
        raise DataError(f"{path}: files of this kind are not read; there are: {kinds}, also as .gz or .zst")
    delimiter = next((mark for suffix, mark in TABLES.items() if plain.endswith(suffix)), None)
    if plain.endswith(SUFFIX):
        rows = arrow_rows(path)
    else:
        rows = _json_rows(path) if delimiter is None else _table_rows(path, delimiter)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} is empty: there is no row in it")
    yield first
    yield from rows  # closed with this


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        source = open_source(path)
        typed = source.table
        marked = row_reader(typed.schema, moment_reader) if isinstance(typed, Rows) else dict
        for record in _closing(source.records):
            yield Row(marked(_object(record, source.shape == "document")), record.number, record.where)
    except RecordError as error:
        raise DataError(str(error)) from error


def _closing(records: Iterator[Record]) -> Iterator[Record]:
    """The records; their file is closed even where they are not read to their end."""
    try:
        yield from records
    finally:
        if isinstance(records, Generator):
            records.close()


def _object(record: Record, alone: bool) -> dict[str, Any]:
    if b"\0" in record.data:
        raise DataError(_nul(record.where, record.data))
    try:
        value = msgspec.json.decode(record.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        value = _by_python(record, error)
    if alone:
        raise DataError(f"{record.file} is not a list of rows, but one JSON value{_lists_in(value)}; rows are lines of "
                        "objects (.jsonl), or objects in one list")  # fmt: skip
    if not isinstance(value, dict):
        found = type(value).__name__
        raise DataError(f"{record.where}: a row is a JSON object with its columns, found {found}: {str(value)!r:.60}")
    return value


def _by_python(record: Record, error: Exception) -> Any:
    """What Python reads and msgspec does not, such as NaN. Lone surrogates, which no file could hold, nor a terminal
    show, are `?`, as for a tokenizer."""
    try:
        value = json.loads(record.data.decode("utf-8-sig"))
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except UnicodeDecodeError as wrong:
        raise DataError(_encoding(record.where, record.data, wrong)) from None
    except (ValueError, RecursionError):
        raise DataError(f"{record.where}: not JSON: {error}") from None


def _lists_in(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    lists = [f"'{key}' ({len(rows)} items)" for key, rows in value.items() if isinstance(rows, list) and rows]
    keys = f", an object of {', '.join(list(value)[:6])}" if value else ""
    return f"{keys}; write out the list alone: {', '.join(lists[:3])}" if lists else keys


def _table_rows(path: Path, delimiter: str) -> Iterator[Row]:
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    with decompressed(raw, str(path)) as file:
        found = records(_decoded(file, path), delimiter)
        number = 1
        try:
            header, last = next(found, ([], 0))
            if not last:
                return
            if len(header) == 1 and ";" in header[0] and delimiter == ",":
                raise DataError(f"{path}, line 1: columns are divided by ';': write the file with commas")
            _check_header(header, path)
            number = last + 1
            for values, last in found:
                where = f"{path}, line {number}"
                if values and len(values) != len(header):
                    raise DataError(f"{where}: {counted(len(values), 'value')}, where the header names "
                                    f"{counted(len(header), 'column')} ({', '.join(header)}): is a "
                                    f"{'tab' if delimiter == TAB else 'comma'} unquoted?")  # fmt: skip
                if values:
                    yield Row(dict(zip(header, values, strict=True)), number, where)
                number = last + 1
        except csv.Error as error:
            raise DataError(f"{path}, line {number}: no CSV: {error} (is a quote not closed?)") from None
        except read_errors() as error:
            raise DataError(f"{path}, line {number}: the file cannot be read further: {error}") from error


def _decoded(file: BufferedReader, path: Path) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        where = f"{path}, line {number}"
        if b"\0" in line:
            raise DataError(_nul(where, line))
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(_encoding(where, line, error)) from None


def _check_header(header: list[str], path: Path) -> None:
    for name in header:
        if not name.strip():
            raise DataError(f"{path}, line 1: a column has no name: {', '.join(map(repr, header))}")
        if header.count(name) > 1:
            raise DataError(f"{path}, line 1: two columns are named '{name}'")


def _nul(where: str, data: bytes) -> str:
    nuls = 0 if _BLANK in data else data.count(b"\0") / len(data)  # of ASCII, three of four in UTF-32
    if wide := marked_as(data) or ("UTF-32" if nuls > 2 / 3 else "UTF-16" if nuls > 1 / 3 else ""):
        return _wide(where, wide)
    return f"{where}: a NUL byte at position {data.index(0)}: this is not text, or it was damaged"


def _encoding(where: str, data: bytes, error: UnicodeDecodeError) -> str:
    if wide := marked_as(data):
        return _wide(where, wide)
    return (
        f"{where}: not UTF-8 (byte 0x{data[error.start]:02x} at position {error.start}): "
        "iconv -f LATIN1 -t UTF-8 rewrites it, if it is Latin-1"
    )


def _wide(where: str, encoding: str) -> str:
    return f"{where}: this is {encoding}, not UTF-8: iconv -f {encoding} -t UTF-8 rewrites it"


def following(files: Iterable[Iterable[Row]]) -> Iterator[Row]:
    """The rows of files, each with the columns of those `before` it: in its own file, and in any before that which has
    all columns of its file's first row."""
    shapes: set[frozenset[str]] = set()
    for rows in files:
        known: frozenset[str] | None = None
        for row in rows:
            if known is None:
                known = frozenset[str]().union(*(shape for shape in shapes if shape >= row.columns.keys()))
            yield row._replace(before=known)
            if not row.columns.keys() <= known:
                known = known.union(row.columns)
        if known is not None:
            shapes.add(known)


def mapped(row: Row, columns: Mapping[str, str]) -> Columns:
    """The row, with the fields that the settings map under their own names in place of their columns. Raises DataError
    for a column that it has not, unless rows before it have that: what a later row leaves out is as null, but where it
    has another that may be meant."""
    if not columns:
        return row.columns
    found = {name: None if _left_out(row, name, column) else _look_up(row, column) for name, column in columns.items()}
    gone = {_outer(row, column) for column in columns.values()}
    return {**{name: value for name, value in row.columns.items() if name not in gone}, **found}


def _left_out(row: Row, name: str, column: str) -> bool:
    """Whether rows before it have the column, which the settings call `name`, and this one has nothing for it."""
    outer = _outer(row, column)
    if outer not in row.columns:
        return outer in row.before and not others((name,), row.new) and not nearest(outer, row.new)
    value: Any = row.columns[outer]
    for part in column[len(outer) + 1 :].split(".") if outer != column else ():
        value = written_out(value)
        if value is None:
            return True
        value = value.get(part, "") if isinstance(value, dict) else ""
    return False


def _outer(row: Row, column: str) -> str:
    """The column itself, or the one within which it is."""
    outer = column.partition(".")[0]
    return column if column in row.columns or (column in row.before and outer not in row.columns) else outer


def _look_up(row: Row, column: str) -> Any:
    if column in row.columns:
        return row.columns[column]
    value: Any = row.columns
    around = ""
    for part in column.split("."):
        value = written_out(value)
        if not isinstance(value, dict) or part not in value:
            there = [around + name for name in value] if isinstance(value, dict) else list(row.columns)
            close = nearest(around + part, there)
            raise DataError(f"{row.where}: no column '{column}'{close}; there are: {', '.join(there)}")
        value, around = value[part], f"{around}{part}."
    return value


def split_of(row: Row, columns: Mapping[str, str]) -> str:
    """What the row is for. columns: as in the settings. Raises DataError for a row that leaves it out."""
    if SPLIT in columns:
        return _name_of({SPLIT: _look_up(row, columns[SPLIT])}, row.where)
    about = written_out(row.columns.get("extra_info"))
    holder = row.columns if SPLIT in row.columns else about if isinstance(about, dict) and SPLIT in about else None
    if holder is None:
        raise DataError(
            f"{row.where}: no column 'split'{nearest(SPLIT, row.columns)}, which says what is trained on; it has: "
            f'{", ".join(row.columns)}. Map it: columns = {{ split = "…" }}; for all rows leave task.split and '
            "task.evaluation_split empty"
        )
    return _name_of(holder, row.where)


def _name_of(holder: Columns, where: str) -> str:
    try:
        return text(holder, SPLIT)
    except Misfit as misfit:
        raise DataError(f"{where}: {misfit}") from None
