"""Index of trajectory files in SQLite: filters and full text; safe to delete.

Lines are found by their offsets (`retcon.store.members`). Each file is indexed in one transaction, and again when it
has changed; of a plain file that has grown only the new lines. Text is searched by words; `texts` keeps no copy of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from retcon.core.errors import RecordError, RetconError
from retcon.core.types import REPLACED
from retcon.store.compression import drop_duplicates, plain_name
from retcon.store.members import line_at, lines_at, replace_line
from retcon.store.whole import check_unlocked, lock_file

VERSION = 2
NAME = "index.sqlite"
FIELDS = ("question", "words", "code", "output")
"""Parts of a trajectory that are searched by name."""
QUESTION = 160
"""Characters of the question that lists show."""
MESSAGE = 160
"""Most characters of a failed call's last output line, by which failures are grouped."""
FACETS = ("verdict", "stop", "repair", "selection", "errors")
REDACTED = "[redacted]"
NOT_ROLLOUTS = ("metrics.jsonl", "verdicts.jsonl", "notes.jsonl")
_SCHEMA = f"""
CREATE TABLE sources(id INTEGER PRIMARY KEY, path TEXT UNIQUE, size INT, mtime INT, place INT, lines INT, problem TEXT);
CREATE TABLE combinations(id INTEGER PRIMARY KEY, {", ".join(FACETS)}, UNIQUE({", ".join(FACETS)}));
CREATE TABLE rollouts(
  id INTEGER PRIMARY KEY AUTOINCREMENT, source INT, member INT, place INT, combination INT, name TEXT, task TEXT,
  step INT, member_index INT, reward REAL, turns INT, calls INT, failures INT, tokens INT, advantage REAL,
  staleness INT, seconds REAL, answer TEXT, expected TEXT, reason TEXT, parent TEXT, relation TEXT, question TEXT,
  tree INT DEFAULT 1);
CREATE INDEX by_combination ON rollouts(combination, failures);
CREATE INDEX by_step ON rollouts(step);
CREATE INDEX by_task ON rollouts(task, combination);
CREATE INDEX by_name ON rollouts(name);
CREATE INDEX by_parent ON rollouts(parent) WHERE parent IS NOT NULL;
CREATE INDEX by_tree ON rollouts(tree) WHERE tree > 1;
CREATE INDEX by_reward ON rollouts(reward);
CREATE INDEX by_failures ON rollouts(failures);
CREATE INDEX by_turns ON rollouts(turns);
CREATE INDEX by_tokens ON rollouts(tokens);
CREATE INDEX by_advantage ON rollouts(advantage);
CREATE INDEX by_seconds ON rollouts(seconds);
CREATE INDEX by_source ON rollouts(source);
CREATE TABLE messages(id INTEGER PRIMARY KEY, error TEXT, text TEXT, UNIQUE(error, text));
CREATE TABLE failures(message INT, step INT, rollout INT, repaired INT);
CREATE INDEX by_message ON failures(message, step, repaired);
CREATE INDEX by_rollout ON failures(rollout);
CREATE VIRTUAL TABLE texts USING fts5({", ".join(FIELDS)}, content='', columnsize=0,
  tokenize="unicode61 tokenchars '_'");
PRAGMA user_version = {VERSION};
"""
SHOWN = (
    "id", "name", "task", "step", "member_index", "reward", "verdict", "stop", "repair", "selection", "errors", "turns",
    "calls", "failures", "tokens", "advantage", "staleness", "seconds", "answer", "expected", "reason", "parent",
    "relation", "question", "tree", "file",
)  # fmt: skip
"""Columns of a row of a list."""
SORTS = ("id", "name", "task", "step", "reward", "failures", "turns", "tokens", "advantage", "seconds", "tree")


class _Segment(msgspec.Struct):
    kind: str = ""
    text: str = ""
    ids: msgspec.Raw = msgspec.Raw(b"")


class _Call(msgspec.Struct):
    arguments: Any = ""


class _Observation(msgspec.Struct):
    text: str = ""
    status: str = "ok"
    error_type: str | None = None


class _Repair(msgspec.Struct):
    decision: str = ""


class _Turn(msgspec.Struct):
    segments: list[_Segment] = []
    calls: list[_Call] = []
    observations: list[_Observation] = []
    abandoned: list[_Turn] = []
    repair: _Repair | None = None


class _Provenance(msgspec.Struct):
    step: int | None = None
    index: int | None = None


class _Branch(msgspec.Struct):
    parent: str = ""


class _Parent(msgspec.Struct):
    trajectory: str = ""
    relation: str = "subcall"


class _Training(msgspec.Struct):
    advantage: float | None = None
    staleness: int | None = None
    seconds: float | None = None


class _Rollout(msgspec.Struct):
    """Indexed fields of a line; ids and log-probs are skipped."""

    id: str
    task: str
    prompt: list[_Segment]
    turns: list[_Turn]
    reward: float | None = None
    stop: str = "answer"
    provenance: _Provenance | None = None
    branch: _Branch | None = None
    parent: _Parent | None = None
    selection: str | None = None
    answer: str | None = None
    expected: str | None = None
    reason: str | None = None
    training: _Training | None = None


_DECODER = msgspec.json.Decoder(_Rollout)
_ROLE_MARK = re.compile(r"<\|?[\w/]{1,20}\|?>(?:(?:system|user|assistant)(?=[\n<]))?")


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions on rollouts, all of which must hold; empty: all rollouts.

    text: words to find, the last one by prefix. field: one of FIELDS. step: first and last. failed: a call failed.
    repair: a decision, `any` or `none`. dropped: not trained on. sort: one of SORTS, `-` before it for descending.
    tree: least and most rollouts in its tree. parent: id of the rollout that it is a part of or branched off. message:
    id of a failed call's message (`Index.failures`).
    """

    text: str = ""
    field: str = ""
    step: tuple[int, int] | None = None
    task: str = ""
    group: str = ""
    verdict: str = ""
    stop: str = ""
    error: str = ""
    failed: bool = False
    repair: str = ""
    selection: str = ""
    dropped: bool = False
    names: tuple[str, ...] | None = None
    tokens: tuple[int, int] | None = None
    tree: tuple[int, int] | None = None
    parent: str = ""
    message: int | None = None
    sort: str = "id"


@dataclass(frozen=True, slots=True)
class Counts:
    """Rollouts that a query finds, in all and by facet. errors: by type."""

    total: int
    facets: dict[str, dict[str, int]]


class Index:
    """Index of a folder or file. Raises RecordError if it cannot be created."""

    def __init__(self, root: Path, path: Path | None = None) -> None:
        self.root = root
        self._ids: dict[tuple[str, ...], int] = {}
        self.path = path or index_path(root)
        try:
            self._db = _open(self.path)
        except sqlite3.DatabaseError:  # damaged, or of another version
            with suppress(OSError):
                self.path.unlink()
            try:
                self._db = _open(self.path)
            except (sqlite3.Error, OSError) as error:
                raise RecordError(f"{self.path}: the index cannot be created: {error}") from error

    def close(self) -> None:
        self._db.close()

    def update(self) -> int:
        """Index new and changed files, remove deleted ones; return the number of added lines."""
        files = {os.path.relpath(file, self.root): file for file in rollout_files(self.root)}
        known = {path: id for id, path in self._db.execute("SELECT id, path FROM sources")}
        for path in known.keys() - files.keys():
            with self._writing():
                self._forget(known[path])
        return sum(self.add_file(file) for file in files.values())

    def add_file(self, file: Path) -> int:
        """Index one file, if it has changed; return the number of added lines."""
        try:
            about = file.stat()
        except FileNotFoundError:
            return 0
        path = os.path.relpath(file, self.root)
        added = place = 0
        if self._known(path)[1:3] == (about.st_size, about.st_mtime_ns):
            return 0
        with self._writing():
            source, size, mtime, done = self._known(path)
            if (size, mtime) == (about.st_size, about.st_mtime_ns):
                return 0
            grown = source is not None and done and about.st_size > size
            if source is not None and not grown:
                self._forget(source)
                source = None
            if source is None:
                source = self._db.execute("INSERT INTO sources(path) VALUES (?)", (path,)).lastrowid
            place = done if grown else 0
            bad, problem = 0, ""
            number = self._db.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()[0] or 0
            try:
                plain = plain_name(file.name) == file.name
                for member, offset, line in lines_at(file, place):
                    if plain:
                        place = member + len(line)
                    try:
                        rollout = _DECODER.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        bad += bool(line.strip())
                        if bad == 5 and not added:
                            break
                        continue
                    number += 1
                    added += 1
                    self._insert(number, source, member, offset, rollout)
            except (RetconError, OSError) as error:
                problem = str(error)
            if self._db.execute("SELECT 1 FROM rollouts WHERE source = ? AND parent > ''", (source,)).fetchone():
                self._db.execute(_TREES, {"source": source})
            if bad:
                none = f"none of its first {bad} lines is a trajectory"
                problem = problem or (f"{bad} of {bad + added} lines are not trajectories" if added else none)
            self._db.execute(
                "UPDATE sources SET size = ?, mtime = ?, place = ?, lines = ifnull(lines, 0) + ?, problem = ? "
                "WHERE id = ?", (about.st_size, about.st_mtime_ns, place, added, problem, source),
            )  # fmt: skip
        return added

    def problems(self) -> list[str]:
        """Return a line for each file with problems; files without any trajectory only if all are."""
        rows = self._db.execute("SELECT path, problem, lines > 0 FROM sources WHERE problem != '' ORDER BY 3 DESC")
        found = [(f"{path}: {problem}".removeprefix(".: "), has) for path, problem, has in rows]
        empty = self._db.execute("SELECT 1 FROM rollouts LIMIT 1").fetchone() is None
        return [problem for problem, has in found if has or empty]

    def _known(self, path: str) -> tuple[int | None, int, int, int]:
        query = "SELECT id, ifnull(size, -1), ifnull(mtime, -1), ifnull(place, 0) FROM sources WHERE path = ?"
        return self._db.execute(query, (path,)).fetchone() or (None, -1, -1, 0)

    def _writing(self) -> _Transaction:
        return _Transaction(self._db, self._ids)

    def _forget(self, source: int) -> None:
        here = "(SELECT id FROM rollouts WHERE source = ?)"
        self._db.execute(f"DELETE FROM failures WHERE rollout IN {here}", (source,))
        self._db.execute("DELETE FROM rollouts WHERE source = ?", (source,))
        self._db.execute("DELETE FROM sources WHERE id = ?", (source,))

    def _insert(self, number: int, source: int | None, member: int, offset: int, rollout: _Rollout) -> None:
        row, texts, facets, failures = _row_of(rollout)
        combination = self._id_of("combinations", FACETS, facets)
        self._db.execute(_INSERT, (number, source, member, offset, combination, *row))
        self._db.execute(_INSERT_TEXTS, (number, *texts))
        step = rollout.provenance and rollout.provenance.step
        for error, message, repaired in failures:
            about = (self._id_of("messages", ("error", "text"), (error, message)), step, number, repaired)
            self._db.execute("INSERT INTO failures VALUES (?, ?, ?, ?)", about)

    def _id_of(self, table: str, columns: Sequence[str], values: tuple[str, ...]) -> int:
        """Return the id of the row with these values; insert it if missing."""
        key = (table, *values)
        if key not in self._ids:
            if len(self._ids) > 20_000:
                self._ids.clear()
            names, marks = ", ".join(columns), ", ".join("?" * len(values))
            self._db.execute(f"INSERT OR IGNORE INTO {table}({names}) VALUES ({marks})", values)
            same = " AND ".join(f"{name} = ?" for name in columns)
            self._ids[key] = self._db.execute(f"SELECT id FROM {table} WHERE {same}", values).fetchone()[0]
        return self._ids[key]

    # Reading

    def counts(self, query: Query) -> Counts:
        """Count the rollouts, in all and by facet."""
        join, where, values = _conditions(query)
        rows = self._db.execute(f"SELECT r.combination, count(*) FROM {join} {where} GROUP BY 1", values).fetchall()
        combinations = {id: found for id, *found in self._db.execute("SELECT * FROM combinations")}
        facets: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
        for combination, count in rows:
            for name, value in zip(FACETS, combinations[combination], strict=True):
                for one in value.split() if name in ("errors", "repair") else [value]:
                    facets[name][one] += count
        return Counts(sum(count for _, count in rows), {name: dict(values) for name, values in facets.items()})

    def steps(self, query: Query) -> list[tuple[int, int]]:
        """Count the rollouts of each step."""
        join, where, values = _conditions(query)
        where = f"{where} AND r.step IS NOT NULL" if where else "WHERE r.step IS NOT NULL"
        return self._db.execute(f"SELECT r.step, count(*) FROM {join} {where} GROUP BY 1 ORDER BY 1", values).fetchall()

    def rows(self, query: Query, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
        """Return a page of rollouts as dicts of SHOWN. found: fields that hold the text."""
        join, where, values = _conditions(query)
        name = query.sort.removeprefix("-")
        if name not in SORTS:
            raise RecordError(f"cannot sort by {name}; choose one of {', '.join(SORTS)}")
        # By the rowid of `texts`, in whose order a search finds them: SQLite then stops at the limit.
        by = "texts.rowid" if name == "id" and join.startswith("texts") else f"r.{name}"
        order = f"ORDER BY {by} {'DESC' if query.sort.startswith('-') else 'ASC'}"
        sql = f"SELECT {_COLUMNS_SHOWN} FROM {join} {_JOINED} {where} {order} LIMIT ? OFFSET ?"
        found = [dict(zip(SHOWN, row, strict=True)) for row in self._db.execute(sql, (*values, limit, offset))]
        if expression := fts_phrase(query.text, ""):
            self._add_fields(found, expression)
        return found

    def numbers(self, query: Query) -> list[int]:
        """Return the numbers of all rollouts, in file order."""
        join, where, values = _conditions(query)
        return [id for (id,) in self._db.execute(f"SELECT r.id FROM {join} {where} ORDER BY r.id", values)]

    def failures(self, text: str = "", limit: int = 200) -> list[dict[str, Any]]:
        """Return the messages of failed calls, most frequent first; digits count as equal.

        Each is a dict of id, error, text, count, repaired, first and last (steps), later (failures at steps after the
        first repaired one, None without repairs), and steps: (step, count, repaired) of each.
        """
        sql = """
            SELECT m.id, m.error, m.text, count(*) AS count, sum(f.repaired), min(f.step), max(f.step),
              min(CASE WHEN f.repaired THEN f.step END)
            FROM messages m CROSS JOIN failures f ON f.message = m.id WHERE m.error || ': ' || m.text LIKE ? ESCAPE '\\'
            GROUP BY m.id ORDER BY count DESC LIMIT ?"""
        by_step = "SELECT step, count(*), sum(repaired) FROM failures WHERE message = ? GROUP BY 1 ORDER BY 1"
        names = ("id", "error", "text", "count", "repaired", "first", "last", "later")
        found = []
        for row in self._db.execute(sql, (f"%{_escaped(text)}%", limit)).fetchall():
            about = dict(zip(names, row, strict=True))
            about["steps"] = self._db.execute(by_step, (row[0],)).fetchall()
            if (since := about["later"]) is not None:
                about["later"] = sum(count for step, count, _ in about["steps"] if step is not None and step > since)
            found.append(about)
        return found

    def message_of(self, error: str, output: str) -> int | None:
        """Look up a failed call's message by error type and output."""
        sql = "SELECT id FROM messages WHERE error = ? AND text = ?"
        found = self._db.execute(sql, (error, message_in(output))).fetchone()
        return found and int(found[0])

    def messages_of(self, number: int) -> list[int]:
        """Return the ids of the messages of a rollout's failed calls."""
        return [id for (id,) in self._db.execute("SELECT DISTINCT message FROM failures WHERE rollout = ?", (number,))]

    def tasks(self) -> list[dict[str, Any]]:
        """Return statistics of each task, least solved first: rollouts, right ones and frequent errors."""
        combinations = {id: found for id, *found in self._db.execute("SELECT * FROM combinations")}
        tasks: dict[str, dict[str, Any]] = {}
        sql = "SELECT task, combination, count(*) FROM rollouts GROUP BY 1, 2"
        for task, combination, count in self._db.execute(sql):
            about = tasks.setdefault(
                task, {"task": task, "rollouts": 0, "judged": 0, "right": 0, "errors": Counter(), "ends": Counter()}
            )
            verdict, stop, *_, errors = combinations[combination]
            about["rollouts"] += count
            about["judged"] += count * (verdict != "")
            about["right"] += count * (verdict == "right")
            about["ends"][stop] += count
            for error in errors.split():
                about["errors"][error] += count
        for about in tasks.values():
            about["errors"], about["ends"] = (dict(about[name].most_common(4)) for name in ("errors", "ends"))
        return sorted(tasks.values(), key=lambda about: (about["right"] / (about["judged"] or 1), -about["rollouts"]))

    def _add_fields(self, rows: Sequence[dict[str, Any]], expression: str) -> None:
        ids = [row["id"] for row in rows]
        for row in rows:
            row["found"] = []
        sql = "SELECT rowid FROM texts WHERE texts MATCH ? AND rowid BETWEEN ? AND ?"
        for field in FIELDS if rows else ():
            holds = {id for (id,) in self._db.execute(sql, (f"{{{field}}} : {expression}", min(ids), max(ids)))}
            for row in rows:
                if row["id"] in holds:
                    row["found"].append(field)

    def row(self, number: int) -> dict[str, Any] | None:
        sql = f"SELECT {_COLUMNS_SHOWN} FROM rollouts r {_JOINED} WHERE r.id = ?"
        found = self._db.execute(sql, (number,)).fetchone()
        return found and dict(zip(SHOWN, found, strict=True))

    def number_of(self, name: str) -> int | None:
        """Return the newest rollout of an id, or a prefix's only match."""
        sql = "SELECT id FROM rollouts WHERE name = ? ORDER BY id DESC LIMIT 1"
        if found := self._db.execute(sql, (name,)).fetchone():
            return int(found[0])
        end = name[:-1] + chr(ord(name[-1]) + 1) if name else ""
        some = self._db.execute("SELECT id FROM rollouts WHERE name >= ? AND name < ? LIMIT 2", (name, end)).fetchall()
        return int(some[0][0]) if len(some) == 1 else None

    def line(self, number: int) -> bytes:
        """Read a rollout's line from its file. Raises RecordError."""
        path, member, place = self._place(number)
        try:
            return line_at(path, member, place)
        except FileNotFoundError as error:
            raise RecordError(f"{path} does not exist any more") from error

    def _place(self, number: int) -> tuple[Path, int, int]:
        sql = "SELECT s.path, r.member, r.place FROM rollouts r JOIN sources s ON s.id = r.source WHERE r.id = ?"
        found = self._db.execute(sql, (number,)).fetchone()
        if found is None:
            raise RecordError(f"{self.root}: there is no rollout {number}")
        path, member, place = found
        return self.root / path if path != "." else self.root, member, place

    def delete(self, number: int) -> None:
        """Remove a rollout from its file and the index. Raises RecordError, CheckpointError, StorageError."""
        self._rewrite(number, None)

    def redact(self, number: int, text: str) -> int:
        """Replace a text everywhere in a rollout; return the number of occurrences.

        Segments that held it lose ids and log-probs, and the rollout loses its step's per-token values. Raises
        RecordError if it does not occur, CheckpointError if the file is being written, StorageError.
        """
        line, count = redact_line(self.line(number), text)
        self._rewrite(number, line)
        return count

    def _rewrite(self, number: int, line: bytes | None) -> None:
        path, member, place = self._place(number)
        old = self.line(number)
        if path.suffix == ".jsonl":
            check_unlocked(path.parent)
        with lock_file(path):
            replace_line(path, member, place, line)
        with self._writing(), suppress(msgspec.DecodeError):
            texts = texts_of(old)
            names = ", ".join(FIELDS)
            sql = f"INSERT INTO texts(texts, rowid, {names}) VALUES ('delete', ?, ?, ?, ?, ?)"
            self._db.execute(sql, (number, *texts))
            self._db.execute("DELETE FROM rollouts WHERE id = ?", (number,))
            self._db.execute("INSERT INTO texts(texts) VALUES ('optimize')")
        self.add_file(path)


class _Transaction:
    def __init__(self, db: sqlite3.Connection, ids: dict[tuple[str, ...], int]) -> None:
        self._db, self._ids = db, ids

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")
        if kind is not None:
            self._ids.clear()  # some are of rows that were rolled back


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA cache_size = -48000")
    db.execute("PRAGMA secure_delete = OFF")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.close()
            raise sqlite3.DatabaseError(f"of version {version}")
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    return db


def index_path(root: Path) -> Path:
    """Return the path of an index: in a run's folder, else in the user's cache."""
    if any((root / name).is_file() for name in ("run.json", "result.json")) and os.access(root, os.W_OK):
        return root / NAME
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return cache / "retcon" / "view" / f"{digest}.sqlite"


def rollout_files(root: Path) -> list[Path]:
    """List a path's files that may hold trajectories. Raises RecordError if it does not exist."""
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise RecordError(f"{root} does not exist")
    found = (
        path for path in root.rglob("*.jsonl*")
        if plain_name(path.name).endswith(".jsonl") and plain_name(path.name) not in NOT_ROLLOUTS
        and not any(part.startswith(".") for part in path.relative_to(root).parts) and path.is_file()
    )  # fmt: skip
    return sorted(drop_duplicates(found))


def fts_phrase(text: str, field: str) -> str:
    """Return an FTS5 phrase, its last word a prefix; empty without words."""
    words = re.findall(r"\w+", text)
    if not words:
        return ""
    phrase = '"' + " ".join(words) + '"' + ("*" if text[-1:].isalnum() or text.endswith("_") else "")
    return f"{{{field}}} : {phrase}" if field else phrase


def _conditions(query: Query) -> tuple[str, str, list[Any]]:
    """Return tables, WHERE clause and values."""
    join = "rollouts r"
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        parts.append(condition)
        values.extend(given)

    if query.text.strip():
        expression = fts_phrase(query.text, query.field if query.field in FIELDS else "")
        join = "texts CROSS JOIN rollouts r ON r.id = texts.rowid" if expression else join
        add("texts MATCH ?" if expression else "0", *([expression] if expression else []))
    if query.step is not None:
        add("r.step BETWEEN ? AND ?", *query.step)
    if query.group:
        task, _, step = query.group.rpartition("/")
        if step.isdecimal():
            add("r.task = ? AND r.step = ?", task, int(step))
        else:
            add("r.task = ?", query.group)
    if query.task:
        add("r.task = ?", query.task)
    if query.failed:
        add("r.failures > 0")
    if query.tokens is not None:
        add("r.tokens BETWEEN ? AND ?", *query.tokens)
    if query.tree is not None:
        add("r.tree BETWEEN ? AND ?", *query.tree)
    if query.parent:
        add("r.parent = ?", query.parent)
    if query.message is not None:
        add("r.id IN (SELECT rollout FROM failures WHERE message = ?)", query.message)
    if query.names is not None:
        add(f"r.name IN ({','.join('?' * len(query.names))})", *query.names)
    facets, wanted = _facet_conditions(query)
    if facets:
        # `+`: rows are then found in the order that they are sorted by, up to the limit.
        add(f"+r.combination IN (SELECT id FROM combinations WHERE {' AND '.join(facets)})", *wanted)
    return join, f"WHERE {' AND '.join(parts)}" if parts else "", values


def _facet_conditions(query: Query) -> tuple[list[str], list[Any]]:
    parts: list[str] = []
    values: list[Any] = []
    for column in ("verdict", "stop", "selection"):
        if value := getattr(query, column):
            parts.append(f"{column} = ?")
            values.append(value)
    if query.dropped:
        parts.append("selection NOT IN ('', 'kept')")
    if query.repair in ("none", "any"):
        parts.append(f"repair {'=' if query.repair == 'none' else '!='} ''")
    for column, value in (("errors", query.error), ("repair", query.repair)):
        if value and (column, value) not in (("repair", "none"), ("repair", "any")):
            parts.append(f"(' ' || {column} || ' ') LIKE ? ESCAPE '\\'")
            values.append(f"% {_escaped(value)} %")
    return parts, values


def parse_range(text: str) -> tuple[int, int] | None:
    """Parse a range written as `30`, `30-39` or `30-`; None for anything else."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()):
        return None
    return int(first), int(last) if last else 1 << 62 if dash else int(first)


def texts_of(line: bytes) -> tuple[str, ...]:
    """Return a rollout's searchable texts, one for each of FIELDS."""
    return _row_of(_DECODER.decode(line))[1]


def message_in(output: str) -> str:
    """Return the last line of an output, with digits replaced by 0."""
    lines = output[-4000:].rstrip().rsplit("\n", 1)
    return re.sub(r"\d+", "0", lines[-1].strip())[:MESSAGE]


def redact_line(line: bytes, text: str) -> tuple[bytes, int]:
    """Replace a text in a rollout's line by REDACTED; count it. Raises RecordError if it does not occur."""
    count = 0
    forms = dict.fromkeys((text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]))

    def clean(value: Any) -> Any:
        nonlocal count
        if isinstance(value, str):
            for form in forms:
                count += value.count(form)
                value = value.replace(form, REDACTED)
            return value
        if isinstance(value, list):
            return [clean(one) for one in value]
        if not isinstance(value, dict):
            return value
        before = count
        cleaned = {name: clean(one) for name, one in value.items()}
        if count > before and "kind" in value:
            cleaned = {name: one for name, one in cleaned.items() if name not in ("ids", "logprobs", "versions")}
        if count > before and "training" in value:
            per_token = ("advantages", "mask", "weights")
            cleaned["training"] = {name: one for name, one in cleaned["training"].items() if name not in per_token}
        return cleaned

    made: dict[str, Any] = clean(json.loads(line)) if text.strip() else {}
    if not count:
        raise RecordError(f"{text!r} does not occur in this rollout")
    for turn in ({"segments": made["prompt"]}, *made["turns"]):
        joined = "".join(segment["text"] for segment in turn["segments"])
        if any(form in joined for form in forms):
            raise RecordError(f"{text!r} spans two segments: delete the rollout, or redact its parts")
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode() + b"\n", count


def _escaped(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


_COLUMNS = tuple(name for name in SHOWN if name not in ("id", "tree", "file", *FACETS))
_COLUMNS_SHOWN = ", ".join("s.path" if name == "file" else f"{'c' if name in FACETS else 'r'}.{name}" for name in SHOWN)
_JOINED = "CROSS JOIN combinations c ON c.id = r.combination CROSS JOIN sources s ON s.id = r.source"
_MARKS = ", ".join("?" * (5 + len(_COLUMNS)))
_INSERT = f"INSERT INTO rollouts(id, source, member, place, combination, {', '.join(_COLUMNS)}) VALUES ({_MARKS})"
_TREES = """
WITH RECURSIVE trees(root, id) AS (
  SELECT id, id FROM rollouts r WHERE source = :source AND
    NOT EXISTS (SELECT 1 FROM rollouts p WHERE p.name = r.parent AND p.source = :source)
  UNION SELECT trees.root, r.id FROM trees JOIN rollouts p ON p.id = trees.id
    JOIN rollouts r ON r.parent = p.name AND r.source = :source),
sizes(root, size) AS (SELECT root, count(*) FROM trees GROUP BY root)
UPDATE rollouts SET tree = found.size FROM (SELECT trees.id, sizes.size FROM trees JOIN sizes USING (root)) AS found
WHERE rollouts.id = found.id
"""
_INSERT_TEXTS = f"INSERT INTO texts(rowid, {', '.join(FIELDS)}) VALUES (?, ?, ?, ?, ?)"


_Failure = tuple[str, str, bool]


def _row_of(rollout: _Rollout) -> tuple[tuple[Any, ...], tuple[str, ...], tuple[str, ...], list[_Failure]]:
    """Return the values of _COLUMNS, FIELDS and FACETS; and (error, message, repaired) of each failed call."""
    words: list[str] = []
    code: list[str] = []
    output: list[str] = []
    repairs: list[str] = []
    failures: list[_Failure] = []
    calls = tokens = 0
    for turn in rollout.turns:
        repaired = turn.repair.decision if turn.repair is not None else ""
        if repaired:
            repairs.append(repaired)
        for attempt in (turn, *turn.abandoned):
            for segment in attempt.segments:
                if segment.kind in ("sampled", "spliced"):
                    words.append(segment.text)
                if attempt is turn and segment.ids:
                    tokens += bytes(segment.ids).count(b",") + 1
            for call in attempt.calls:
                arguments = call.arguments
                code.append(arguments if isinstance(arguments, str) else str(arguments.get("code", arguments)))
            for seen in attempt.observations:
                calls += 1
                output.append(seen.text)
                if seen.status not in ("ok", "infrastructure"):
                    replaced = attempt is not turn and repaired in REPLACED
                    failures.append((seen.error_type or seen.status, message_in(seen.text), replaced))
    prompt = "".join(segment.text for segment in rollout.prompt)
    tokens += sum(bytes(s.ids).count(b",") + 1 for s in rollout.prompt if s.ids)
    made, training = rollout.provenance or _Provenance(), rollout.training or _Training()
    verdict = "" if rollout.reward is None else "right" if rollout.reward > 0 else "wrong"
    errors = " ".join(dict.fromkeys(error for error, _, _ in failures)).replace("\n", " ")
    facets = (verdict, rollout.stop, " ".join(dict.fromkeys(repairs)), rollout.selection or "", errors)
    parent, relation = (rollout.branch and rollout.branch.parent), (rollout.branch and "branch")
    if rollout.parent is not None:
        parent, relation = rollout.parent.trajectory, rollout.parent.relation
    return (
        rollout.id, rollout.task, made.step, made.index, rollout.reward, len(rollout.turns), calls, len(failures),
        tokens, training.advantage, training.staleness, training.seconds, rollout.answer and rollout.answer[:QUESTION],
        rollout.expected and rollout.expected[:QUESTION], rollout.reason and rollout.reason[:QUESTION], parent,
        relation, _shown(prompt),
    ), (prompt, "\n".join(words), "\n".join(code), "\n".join(output)), facets, failures  # fmt: skip


def _shown(prompt: str) -> str:
    """Return the end of a prompt, with the question, without the template's marks."""
    text = " ".join(_ROLE_MARK.sub(" ", prompt[-1000:]).split())
    return text if len(text) <= QUESTION else "…" + text[1 - QUESTION :]


def make_indexer(folder: Path) -> Any:
    """Return a function that indexes a run's new file; errors are left to readers of the index."""

    def add(file: Path) -> None:
        with suppress(sqlite3.Error, RetconError, OSError), closing(Index(folder)) as index:
            index.add_file(file)

    return add
