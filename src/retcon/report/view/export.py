"""Export of rollouts to other formats and of static views."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from retcon.core.errors import RecordError, StorageError
from retcon.store.index import FIELDS, Query, texts_of
from retcon.store.jsonl import pair_line, read_line
from retcon.store.whole import storage_errors, whole_file, whole_folder

if TYPE_CHECKING:
    from retcon.report.view.server import Viewer

Format = Literal["jsonl", "parquet", "eval", "pairs", "demonstrations"]
FORMATS: tuple[Format, ...] = get_args(Format)
NAMES: dict[Format, str] = {"jsonl": "rollouts.jsonl", "parquet": "rollouts.parquet", "eval": "rollouts.eval",
                            "pairs": "pairs.jsonl", "demonstrations": "demonstrations.jsonl"}  # fmt: skip
"""Default file names of downloads."""
DATA = Path("data", "runs.js")
CHUNK = 1 << 20
"""Bytes of lines in a data file of an exported view."""


def write_selection(format: Format, lines: Iterable[bytes], path: Path, *, name: str = "retcon") -> None:
    """Write rollouts, given as lines of trajectory files, in another format.

    Args:
        format: `jsonl` as they stand in their files; `parquet`, a row each; `eval`, a log of Inspect; `pairs` of a
            failed call and its fix, for `retcon dpo`; `demonstrations`, those that were right, for `retcon sft`.
        name: of the run, in a log.

    Raises RecordError where nothing is left to write, MissingExtra without the format's package, StorageError.
    """
    if format == "eval":
        from retcon.report.inspect_log import write_rollouts_log

        write_rollouts_log(path, [read_line(line, name) for line in lines], name)
        return
    with storage_errors(path), whole_file(path) as file:
        if format == "parquet":
            from retcon.store.parquet import ParquetWriter, Record

            writer = ParquetWriter(file)
            writer.begin()
            for number, line in enumerate(lines, 1):
                writer.add(Record(line, number, str(path)), line)
            writer.end()
            return
        count = sum(bool(file.write(line)) for line in _chosen(format, lines, name))
        if not count and format != "jsonl":
            raise RecordError(f"no {format} in this selection: " + (
                "no call was replaced by a fix" if format == "pairs" else "no rollout was right"))  # fmt: skip


def _chosen(format: Format, lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    from retcon.purify.pairs import preference_pairs

    for line in lines:
        if format == "jsonl":
            yield line
            continue
        made = read_line(line, name)
        if format == "pairs":
            yield from map(pair_line, preference_pairs(made))
        elif (made.reward or 0) > 0:
            yield line


def write_view(viewer: Viewer, target: Path, only: Sequence[Sequence[int]] | None = None) -> int:
    """Write the view as a folder whose `index.html` opens from disk. Returns the number of rollouts.

    Args:
        target: the folder; an earlier exported view there is replaced.
        only: the numbers of the rollouts, for each run; all of them by default.

    Raises StorageError, also where something else is at `target`.
    """
    if os.path.lexists(target) and not (target / DATA).is_file():
        raise StorageError(f"{target} exists and is not an exported view: choose another folder")
    with storage_errors(target), whole_folder(target) as out:
        return _write_files(viewer, out, only)


def _write_files(viewer: Viewer, out: Path, only: Sequence[Sequence[int]] | None) -> int:
    (out / "data").mkdir()
    static = files("retcon.report.view").joinpath("static")
    for name in _copied():
        target = out / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(static.joinpath(name).read_bytes())
    page = static.joinpath("index.html").read_text(encoding="utf-8")
    scripts = '<script src="offline.js"></script>\n<script src="data/runs.js"></script>\n<script src="app.js"></script>'
    (out / "index.html").write_text(page.replace('<script src="app.js"></script>', scripts), encoding="utf-8")
    runs = [
        _write_run(viewer, number, out / "data", None if only is None else only[number])
        for number in range(len(viewer.runs))
    ]
    overview = [{**about, "rollouts": run["count"]} for about, run in zip(viewer.overview(), runs, strict=True)]
    _write_data(out / DATA, "runs", {"runs": runs, "overview": overview})
    return sum(run["count"] for run in runs)


def _copied() -> Iterator[str]:
    yield from ("app.js", "offline.js", "style.css", "vendor/LICENSES", "vendor/htm-preact-3.1.1.js")
    yield from ("vendor/uplot-1.6.32.js", "vendor/uplot-1.6.32.css")


def _write_run(viewer: Viewer, number: int, folder: Path, only: Sequence[int] | None) -> dict[str, Any]:
    """Write a run's rows and lines; return what the page loads at once."""
    run = viewer.runs[number]
    ids = run.index.numbers(Query()) if only is None else only
    rows = {id: {**(run.index.row(id) or {}), "run": number} for id in ids}
    pieces: dict[int, str] = {}
    part: list[tuple[int, bytes]] = []
    size = chunk = 0

    def flush() -> None:
        nonlocal part, size, chunk
        texts = {id: dict(zip(FIELDS, texts_of(line), strict=True)) for id, line in part}
        lines = {id: line.decode("utf-8", "replace") for id, line in part}
        _write_data(folder / f"lines-{number}-{chunk}.js", f"lines-{number}-{chunk}", {"lines": lines, "texts": texts})
        part, size, chunk = [], 0, chunk + 1

    for id in ids:
        line = viewer.line(run, id)
        rows[id]["chunk"] = chunk
        rows[id]["messages"] = run.index.messages_of(id)
        part.append((id, line))
        size += len(line)
        pieces |= viewer.pieces(run, json.loads(line), pieces)
        if size >= CHUNK:
            flush()
    if part:
        flush()
    return {"rows": [rows[id] for id in ids], "count": len(ids), "pieces": pieces or None, "chunks": chunk,
            "metrics": viewer.metrics(run), "notes": viewer.notes(run), "failures": run.index.failures()}  # fmt: skip


def _write_data(path: Path, name: str, value: object) -> None:
    """Write a value as a script for the page, as `fetch` does not read files."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    with storage_errors(path):
        path.write_text(f"retconData({json.dumps(name)},{text});\n", encoding="utf-8")
