"""Readers of rows with their lines: JSON, CSV, Parquet, Arrow, hub data sets.

Files may be compressed; settings may rename columns.
"""

from __future__ import annotations

import csv
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from retcon.config.schema import TaskSection
from retcon.core.errors import MissingExtra, RecordError, nearest, nearest_path, reraise_as
from retcon.core.registry import import_object
from retcon.core.texts import counted
from retcon.store.compression import decompressed, plain_name, read_errors
from retcon.store.parquet import Rows, import_arrow, row_reader, rows_of
from retcon.store.records import Record, find_bom, open_source
from retcon.tasks.benchmarks import BENCHMARKS
from retcon.tasks.data.conventions import equivalent_columns
from retcon.tasks.data.fields import ColumnError, Columns, DataError, Moment, Row, parse_cell, read_text
from retcon.tasks.registry import TaskSet, is_task_set

if TYPE_CHECKING:
    from retcon.tasks.data.settings import TaskSource

LONGEST = 2**25
"""Most characters of a value. The csv module's own limit is 131,072, less than a question may have."""
TAB = "\t"
_limit = threading.Lock()  # for the csv module's limit, which is global


def read_records(lines: Iterator[str], delimiter: str) -> Iterator[tuple[list[str], int]]:
    """Yield each record's values and last line number; [] for empty lines.

    A value of a TSV that begins with a quote and is not a valid quoted one stays as it stands, quotes included, as long
    as the line has as many values as the first. Raises csv.Error.
    """
    if delimiter == TAB:
        yield from _tab_separated(lines)
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while (values := _next(reader)) is not None:
        yield values, reader.line_num


def _tab_separated(lines: Iterator[str]) -> Iterator[tuple[list[str], int]]:
    ahead: deque[str] = deque()  # read in search of a quote that closes
    width, number = 0, 0
    while True:
        taken: list[str] = []
        values, error = None, None
        try:
            values = _next(csv.reader(_noted(lines, ahead, taken), delimiter=TAB, strict=True))
        except csv.Error as wrong:
            error = wrong
        if not taken:
            return
        literal = taken[0].rstrip("\r\n").split(TAB)
        if values is None or len(values) not in (0, width or len(values)):
            if len(literal) == (width or len(literal)):
                ahead.extendleft(reversed(taken[1:]))
                values, taken = literal, taken[:1]
            elif error is not None:
                raise error
        number += len(taken)
        width = width or len(values or ())
        yield values or [], number


def _noted(lines: Iterator[str], ahead: deque[str], taken: list[str]) -> Iterator[str]:
    """Yield the next lines and append each to `taken`."""
    while (line := ahead.popleft() if ahead else next(lines, None)) is not None:
        taken.append(line)
        yield line


def _next(reader: Any) -> list[str] | None:
    with _limit:
        before = csv.field_size_limit(LONGEST)
        try:
            return next(reader, None)
        finally:
            csv.field_size_limit(before)


SUFFIX = ".arrow"
SPLITS = "dataset_dict.json"
ABOUT = (SPLITS, "dataset_info.json", "state.json")
"""Metadata beside the files with rows."""


def has_splits(path: Path) -> bool:
    """Return whether a folder is a saved data set with splits."""
    return (path / SPLITS).is_file()


def saved_splits(path: Path) -> list[str]:
    """Return the names of a saved data set's splits. Raises DataError."""
    try:
        return [str(name) for name in json.loads((path / SPLITS).read_text(encoding="utf-8"))["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / SPLITS} does not say which splits there are: {error!r}") from error


def folder_of(path: Path, split: str) -> Path:
    """Return the folder of one split. Raises DataError with the nearest name for an unknown one."""
    there = saved_splits(path)
    if split not in there:
        raise DataError(f"{path} has no split '{split}'{nearest(split, there)}; there are: {', '.join(there)}")
    return path / split


def arrow_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of an Arrow file, in stream or file format.

    Raises DataError for another format or a damaged file; MissingExtra without pyarrow.
    """
    import_arrow(str(path))
    import pyarrow

    number = 0
    try:
        with pyarrow.memory_map(str(path)) as file:
            try:
                batches = iter(pyarrow.ipc.open_stream(file))
            except pyarrow.ArrowInvalid:
                whole = pyarrow.ipc.open_file(file)
                batches = (whole.get_batch(n) for n in range(whole.num_record_batches))
            for batch in batches:
                marked = row_reader(batch.schema, moment_reader)
                for row in rows_of(batch):
                    number += 1
                    yield Row(marked(msgspec.to_builtins(row)), number, f"{path}, row {number}")
    except (pyarrow.ArrowException, OSError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}, row {number + 1}: the Arrow file cannot be read further: {reason}") from error


def moment_reader(type: Any) -> Callable[[Any], Any] | None:
    """Return a converter to `Moment` for Arrow's temporal types, else None (`row_reader`)."""
    from pyarrow import types

    return (lambda value: value if value is None else Moment(value)) if types.is_temporal(type) else None


SPLIT = "split"
TABLES = {".csv": ",", ".tsv": TAB}
SUFFIXES = (".jsonl", ".ndjson", ".json", *TABLES, ".parquet", SUFFIX)
"""Suffixes of files with rows, before that of a compression (.gz, .zst)."""

_BLANK = bytes(8)
"""More NUL bytes in a row than wide characters have: blocks that a crashed machine had not written yet."""


def is_data_file(name: str) -> bool:
    """Return whether a name has the suffix of a file with rows."""
    return plain_name(name).endswith(SUFFIXES)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, folder or pattern (`shards/*.parquet`). They are read one by one, files in the order of
    their names.

    Raises DataError, which names file and line: for a file that is missing, empty, or of another kind, a folder or
    pattern without any; for text that is not UTF-8, NUL bytes, and rows other than JSON objects; for a CSV whose rows
    differ in length. MissingExtra for a kind of file whose package is not installed.
    """
    yield from with_earlier_columns(map(_rows_of, files_of(path)))


def files_of(path: Path) -> Sequence[Path]:
    """Return the files that `read_rows` reads. Raises DataError for a folder or pattern without any."""
    return [path] if (files := shards(path)) is None else files


def shards(path: Path) -> list[Path] | None:
    """Return the files of a folder or pattern; None for a file's name. Raises DataError without any."""
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
    """Return whether a path is a pattern; an existing file's name is not."""
    return any(sign in path for sign in "*?[") and not Path(path).exists()


def _rows_of(path: Path) -> Iterator[Row]:
    try:
        known = path.exists()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not known:
        raise DataError(f"{path} does not exist{nearest_path(path, SUFFIXES)}")
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
    """Yield the records, and close their file even if they are not read to their end."""
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
    """Decode JSON that Python reads and msgspec does not, such as NaN. Lone surrogates, which files and terminals
    cannot hold, become `?`, as in a tokenizer."""
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
        found = read_records(_decoded(file, path), delimiter)
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
    if wide := find_bom(data) or ("UTF-32" if nuls > 2 / 3 else "UTF-16" if nuls > 1 / 3 else ""):
        return _wide(where, wide)
    return f"{where}: a NUL byte at position {data.index(0)}: this is not text, or it was damaged"


def _encoding(where: str, data: bytes, error: UnicodeDecodeError) -> str:
    if wide := find_bom(data):
        return _wide(where, wide)
    return (
        f"{where}: not UTF-8 (byte 0x{data[error.start]:02x} at position {error.start}): "
        "iconv -f LATIN1 -t UTF-8 rewrites it, if it is Latin-1"
    )


def _wide(where: str, encoding: str) -> str:
    return f"{where}: this is {encoding}, not UTF-8: iconv -f {encoding} -t UTF-8 rewrites it"


def with_earlier_columns(files: Iterable[Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows of files with the columns `before` them. These come from their own file, and from earlier files
    with all columns of its first row."""
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


def map_columns(row: Row, columns: Mapping[str, str]) -> Columns:
    """Return the row with mapped columns under the fields' names. Raises DataError for a column that it lacks. If
    earlier rows have that column, it counts as null, unless the row has another that may be meant."""
    if not columns:
        return row.columns
    found = {name: None if _left_out(row, name, column) else _look_up(row, column) for name, column in columns.items()}
    gone = {_outer(row, column) for column in columns.values()}
    return {**{name: value for name, value in row.columns.items() if name not in gone}, **found}


def _left_out(row: Row, name: str, column: str) -> bool:
    """Return whether earlier rows have the column of field `name`, and this row has nothing for it."""
    outer = _outer(row, column)
    if outer not in row.columns:
        return outer in row.before and not equivalent_columns((name,), row.new) and not nearest(outer, row.new)
    value: Any = row.columns[outer]
    for part in column[len(outer) + 1 :].split(".") if outer != column else ():
        value = parse_cell(value)
        if value is None:
            return True
        value = value.get(part, "") if isinstance(value, dict) else ""
    return False


def _outer(row: Row, column: str) -> str:
    """Return the column itself, or the one that contains it."""
    outer = column.partition(".")[0]
    return column if column in row.columns or (column in row.before and outer not in row.columns) else outer


def _look_up(row: Row, column: str) -> Any:
    if column in row.columns:
        return row.columns[column]
    value: Any = row.columns
    around = ""
    for part in column.split("."):
        value = parse_cell(value)
        if not isinstance(value, dict) or part not in value:
            there = [around + name for name in value] if isinstance(value, dict) else list(row.columns)
            close = nearest(around + part, there)
            raise DataError(f"{row.where}: no column '{column}'{close}; there are: {', '.join(there)}")
        value, around = value[part], f"{around}{part}."
    return value


def split_of(row: Row, columns: Mapping[str, str]) -> str:
    """Return the row's split. columns: those of the settings. Raises DataError for a row without one."""
    if SPLIT in columns:
        return _name_of({SPLIT: _look_up(row, columns[SPLIT])}, row.where)
    about = parse_cell(row.columns.get("extra_info"))
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
        return read_text(holder, SPLIT)
    except ColumnError as error:
        raise DataError(f"{where}: {error}") from None


BySplit = Mapping[str, Iterable[Mapping[str, Any]]]
NO_SUBSET = "Config name is missing"
"""Beginning of the package's error for a missing subset's name; other failures are ValueErrors too."""
INSTEAD = "or download a file of it and give its path"


def hub_splits(id: str, *, subset: str, revision: str) -> BySplit:
    """Load a hub data set's rows by split. subset, revision: "" for the default.

    Raises MissingExtra without the package; DataError where the hub cannot be reached, and for an unknown data set or
    subset, with the known ones.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtra(
            f"{id} is not a file here, and loading it from the Hugging Face hub needs the datasets package: "
            f"pip install datasets, {INSTEAD}"
        ) from None
    at = _at(revision)
    try:
        data: BySplit = datasets.load_dataset(id, subset or None, revision=revision or None)
    except _offline_errors() as error:
        raise DataError(f"data set {id}{at} cannot be loaded without the hub ({_one_line(error)}): go online, {INSTEAD}"
                        ) from error  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        asks = isinstance(error, ValueError) and (subset or NO_SUBSET in str(error))
        there = _subsets(datasets, id, revision) if asks else ()
        if len(there) > 1 and subset not in there:
            lacks = f"has no subset '{subset}'{nearest(subset, there)}" if subset else "comes in several subsets"
            raise DataError(f"data set {id}{at} {lacks}: name one by task.subset (of `retcon data`: --subset): "
                            f"{', '.join(there)}") from None  # fmt: skip
        raise DataError(f"data set {id}{at} cannot be loaded: {_one_line(error)}") from error
    return data


def hub_rows(id: str, data: BySplit, *, split: str, revision: str) -> Iterator[Row]:
    """Yield the rows of one split of `hub_splits`. Raises DataError with the nearest name for an unknown one."""
    if split not in data:
        at = _at(revision)
        raise DataError(f"data set {id}{at} has no split '{split}'{nearest(split, data)}; there are: {', '.join(data)}")
    for number, columns in enumerate(data[split], 1):
        yield Row(dict(columns), number, f"{id} ({split}), row {number}")


def _at(revision: str) -> str:
    return f" at revision {revision}" if revision else ""


def _offline_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a failing network; the hub's client raises httpx's, and depends on it."""
    try:
        import httpx
    except ImportError:
        return ConnectionError, TimeoutError
    return ConnectionError, TimeoutError, httpx.HTTPError


def _subsets(datasets: ModuleType, id: str, revision: str) -> Sequence[str]:
    """Return the names of a data set's subsets; () where they are unavailable."""
    failures: tuple[type[Exception], ...] = (*_offline_errors(), OSError, ValueError, RuntimeError)
    try:
        names: Sequence[str] = datasets.get_dataset_config_names(id, revision=revision or None)
    except failures:
        return ()
    return names


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


TRAIN = "train"
MEASURED = ("test", "validation", TRAIN)
"""Default splits for evaluation: the first of these that exists."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Splits of a data set. names: in the data set's order. rows: reads one split; raises DataError with the nearest
    name for an unknown one."""

    names: tuple[str, ...]
    rows: Callable[[str], Iterator[Row]]

    @property
    def measured(self) -> str:
        """Return the default split for evaluation (`MEASURED`)."""
        return next((name for name in MEASURED if name in self.names), TRAIN)


def splits_of(source: TaskSource, origin: Origin) -> Splits | None:
    """Return a source's splits, or None without any. Raises as `hub_splits` and `saved_splits`."""
    path = Path(source.path)
    if has_splits(path):
        return Splits(tuple(saved_splits(path)), lambda split: read_rows(folder_of(path, split)))
    if origin != "hub":
        return None
    data = hub_splits(source.path, subset=source.subset, revision=source.revision)
    return Splits(tuple(data), lambda split: hub_rows(source.path, data, split=split, revision=source.revision))


Origin = Literal["file", "family", "benchmark", "import", "hub"]
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def origin_of(path: str) -> Origin:
    """Return the kind of source. Raises DataError with the nearest name for an unknown one."""
    if path and (Path(path).exists() or is_pattern(path)):  # an empty one would be the working directory
        return "file"
    if path in families():
        return "family"
    if path in BENCHMARKS.names:
        return "benchmark"
    if _IMPORT.fullmatch(path):
        return "import"
    if is_data_file(path):
        return "file"  # missing: reading it raises
    if _HUB.fullmatch(path):
        return "hub"
    folder = Path(path).parent
    there = [p.name for p in folder.iterdir() if is_data_file(p.name)] if folder.is_dir() else []
    raise DataError(
        f"no tasks '{path}'{nearest(path, [*families(), *BENCHMARKS.names, *there])}: give a file "
        f"({', '.join(SUFFIXES)}), a family ({', '.join(families())}), a benchmark ({', '.join(BENCHMARKS.names)}), a "
        "data set of the hub (ORG/NAME), or my_package.my_module:MyTasks"
    )


def families() -> list[str]:
    """Return the task families that need no data."""
    return [name for name in TaskSection.kinds.names if name != "file"]


def short_name(path: str) -> str:
    """Return the default name of a source: its file without folder and suffix, or a pattern's first folder."""
    if is_pattern(path):
        path = str(next((p for p in Path(path).parents if not is_pattern(str(p))), ""))
    name = plain_name(Path(path).name) or "data"
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def import_tasks(path: str) -> TaskSet:
    """Import a task set, or call its class or factory, `my_package.my_module:MyTasks`. Raises DataError."""
    try:
        found = import_object(path)
    except ImportError as error:
        raise DataError(f"{path} cannot be imported: {error}") from error
    tasks: TaskSet = found
    if isinstance(found, type) or (callable(found) and not is_task_set(found)):
        with reraise_as(DataError, f"{path}: no task set can be made: it"):
            try:
                tasks = found()
            except TypeError as error:
                raise DataError(f"{path}: it must make a task set without arguments: {error}") from error
    if not is_task_set(tasks):
        raise DataError(f"{path} is not a task set: it needs name, system, train(seed), evaluation(count, seed), "
                        "grade(task, trajectory) (retcon.tasks.registry.TaskSet)")  # fmt: skip
    return tasks
