"""An index of trajectory files: filters and full text in SQLite, made from the files and safe to delete.

A file's lines are found again by their place (`retcon.store.members`). Each file is indexed in one transaction, and
again where it has changed; of a plain file that has grown only what is new. Text is searched by words; `texts` keeps no
copy of it.
"""

from __future__ import annotations

import hashlib
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
from retcon.store.compression import plain_name, read_once
from retcon.store.members import line_at, lines_at

VERSION = 1
NAME = "index.sqlite"
FIELDS = ("question", "words", "code", "output")
"""Parts of a trajectory that are searched by name."""
QUESTION = 160
"""Characters of the question that lists show."""
NOT_ROLLOUTS = ("metrics.jsonl", "verdicts.jsonl", "notes.jsonl")
_SCHEMA = f"""
CREATE TABLE sources(id INTEGER PRIMARY KEY, path TEXT UNIQUE, size INT, mtime INT, place INT, lines INT, problem TEXT);
CREATE TABLE rollouts(
  id INTEGER PRIMARY KEY AUTOINCREMENT, source INT, member INT, place INT, name TEXT, task TEXT, step INT, member_index
  INT, reward REAL, verdict TEXT, stop TEXT, repair TEXT, selection TEXT, errors TEXT, turns INT, calls INT,
  failures INT, tokens INT, advantage REAL, staleness INT, seconds REAL, answer TEXT, expected TEXT, reason TEXT,
  parent TEXT, question TEXT);
CREATE INDEX by_facets ON rollouts(verdict, stop, repair, selection, errors);
CREATE INDEX by_step ON rollouts(step);
CREATE INDEX by_task ON rollouts(task);
CREATE INDEX by_name ON rollouts(name);
CREATE INDEX by_errors ON rollouts(errors);
CREATE INDEX by_reward ON rollouts(reward);
CREATE INDEX by_failures ON rollouts(failures);
CREATE INDEX by_turns ON rollouts(turns);
CREATE INDEX by_tokens ON rollouts(tokens);
CREATE INDEX by_advantage ON rollouts(advantage);
CREATE INDEX by_seconds ON rollouts(seconds);
CREATE INDEX by_source ON rollouts(source);
CREATE VIRTUAL TABLE texts USING fts5({", ".join(FIELDS)}, content='', columnsize=0,
  tokenize="unicode61 tokenchars '_'");
PRAGMA user_version = {VERSION};
"""
SHOWN = (
    "id", "name", "task", "step", "member_index", "reward", "verdict", "stop", "repair", "selection", "errors", "turns",
    "calls", "failures", "tokens", "advantage", "staleness", "seconds", "answer", "expected", "reason", "parent",
    "question",
)  # fmt: skip
"""Columns of a row of a list."""
SORTS = ("id", "name", "task", "step", "reward", "failures", "turns", "tokens", "advantage", "seconds")
FACETS = ("verdict", "stop", "repair", "selection", "errors")


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


class _Training(msgspec.Struct):
    advantage: float | None = None
    staleness: int | None = None
    seconds: float | None = None


class _Rollout(msgspec.Struct):
    """What of a line is indexed; ids and log-probs are passed over."""

    id: str
    task: str
    prompt: list[_Segment]
    turns: list[_Turn]
    reward: float | None = None
    stop: str = "answer"
    provenance: _Provenance | None = None
    branch: _Branch | None = None
    selection: str | None = None
    answer: str | None = None
    expected: str | None = None
    reason: str | None = None
    training: _Training | None = None


_DECODER = msgspec.json.Decoder(_Rollout)
_ROLE_MARK = re.compile(r"<\|?[\w/]{1,20}\|?>")


@dataclass(frozen=True, slots=True)
class Query:
    """Which rollouts, all conditions together; empty is all.

    text: words to find, the last one by its beginning. field: one of FIELDS. step: first and last. failed: a call
    failed. repair: a decision, `any` or `none`. dropped: made, and not trained on. sort: one of SORTS, `-` before it
    for the largest first.
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
    sort: str = "id"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rollouts a query finds, and by facet how many of each value. errors: by type."""

    total: int
    facets: dict[str, dict[str, int]]


class Index:
    """The index of a folder or file. Raises RecordError where it cannot be opened at all."""

    def __init__(self, root: Path, path: Path | None = None) -> None:
        self.root = root
        self.path = path or index_path(root)
        try:
            self._db = _open(self.path)
        except sqlite3.DatabaseError:  # damaged, or of another version
            with suppress(OSError):
                self.path.unlink()
            try:
                self._db = _open(self.path)
            except (sqlite3.Error, OSError) as error:
                raise RecordError(f"{self.path}: no index can be made there: {error}") from error

    def close(self) -> None:
        self._db.close()

    def update(self) -> int:
        """Index what is new or has changed; forget files that are gone. Returns how many lines were added."""
        files = {os.path.relpath(file, self.root): file for file in rollout_files(self.root)}
        known = {path: id for id, path in self._db.execute("SELECT id, path FROM sources")}
        for path in known.keys() - files.keys():
            with self._writing():
                self._forget(known[path])
        return sum(self.add_file(file) for file in files.values())

    def add_file(self, file: Path) -> int:
        """Index one file, if it has changed. Returns how many lines were added."""
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
            if bad:
                problem = problem or f"{bad} of {bad + added} lines are no trajectories"
            self._db.execute(
                "UPDATE sources SET size = ?, mtime = ?, place = ?, lines = ifnull(lines, 0) + ?, problem = ? "
                "WHERE id = ?", (about.st_size, about.st_mtime_ns, place, added, problem, source),
            )  # fmt: skip
        return added

    def problems(self) -> list[str]:
        """What is wrong with files, a line each."""
        rows = self._db.execute("SELECT path, problem FROM sources WHERE problem != '' AND lines > 0")
        return [f"{path}: {problem}" for path, problem in rows]

    def _known(self, path: str) -> tuple[int | None, int, int, int]:
        query = "SELECT id, ifnull(size, -1), ifnull(mtime, -1), ifnull(place, 0) FROM sources WHERE path = ?"
        return self._db.execute(query, (path,)).fetchone() or (None, -1, -1, 0)

    def _writing(self) -> _Transaction:
        return _Transaction(self._db)

    def _forget(self, source: int) -> None:
        self._db.execute("DELETE FROM rollouts WHERE source = ?", (source,))
        self._db.execute("DELETE FROM sources WHERE id = ?", (source,))

    def _insert(self, number: int, source: int | None, member: int, offset: int, rollout: _Rollout) -> None:
        row, texts = _row_of(rollout)
        self._db.execute(_INSERT, (number, source, member, offset, *row))
        self._db.execute(_INSERT_TEXTS, (number, *texts))

    # Reading

    def counts(self, query: Query) -> Counts:
        """How many rollouts there are, in all and by facet."""
        join, where, values = _conditions(query)
        columns = ", ".join(FACETS)
        rows = self._db.execute(f"SELECT {columns}, count(*) FROM {join} {where} GROUP BY {columns}", values)
        facets: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
        total = 0
        for *found, count in rows:
            total += count
            for name, value in zip(FACETS, found, strict=True):
                for one in value.split() if name in ("errors", "repair") else [value]:
                    facets[name][one] += count
        return Counts(total, {name: dict(values) for name, values in facets.items()})

    def rows(self, query: Query, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
        """The rollouts of a page, as dicts of SHOWN, with the fields in which the text was found (`found`)."""
        join, where, values = _conditions(query)
        name = query.sort.removeprefix("-")
        if name not in SORTS:
            raise RecordError(f"cannot sort by {name}; choose one of {', '.join(SORTS)}")
        order = f"ORDER BY r.{name} {'DESC' if query.sort.startswith('-') else 'ASC'}"
        columns = ", ".join(f"r.{c}" for c in SHOWN)
        sql = f"SELECT {columns} FROM {join} {where} {order} LIMIT ? OFFSET ?"
        found = [dict(zip(SHOWN, row, strict=True)) for row in self._db.execute(sql, (*values, limit, offset))]
        if expression := match_of(query.text, ""):
            self._add_fields(found, expression)
        return found

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
        found = self._db.execute(f"SELECT {', '.join(SHOWN)} FROM rollouts WHERE id = ?", (number,)).fetchone()
        return found and dict(zip(SHOWN, found, strict=True))

    def number_of(self, name: str) -> int | None:
        """The newest rollout of that id, else the only one whose id begins so."""
        sql = "SELECT id FROM rollouts WHERE name = ? ORDER BY id DESC LIMIT 1"
        if found := self._db.execute(sql, (name,)).fetchone():
            return int(found[0])
        end = name[:-1] + chr(ord(name[-1]) + 1) if name else ""
        some = self._db.execute("SELECT id FROM rollouts WHERE name >= ? AND name < ? LIMIT 2", (name, end)).fetchall()
        return int(some[0][0]) if len(some) == 1 else None

    def line(self, number: int) -> bytes:
        """A rollout's line, from its file. Raises RecordError."""
        sql = "SELECT s.path, r.member, r.place FROM rollouts r JOIN sources s ON s.id = r.source WHERE r.id = ?"
        found = self._db.execute(sql, (number,)).fetchone()
        if found is None:
            raise RecordError(f"{self.root}: there is no rollout {number}")
        path, member, place = found
        try:
            return line_at(self.root / path if path != "." else self.root, member, place)
        except FileNotFoundError as error:
            raise RecordError(f"{self.root / path} is not there any more") from error


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


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
    """Where the index of a folder or file lies: in a run's folder, else in the user's cache."""
    if any((root / name).is_file() for name in ("run.json", "result.json")) and os.access(root, os.W_OK):
        return root / NAME
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return cache / "retcon" / "view" / f"{digest}.sqlite"


def rollout_files(root: Path) -> list[Path]:
    """The files of a folder, or the file itself, that may hold trajectories. Raises RecordError where there is none."""
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise RecordError(f"{root} does not exist")
    found = (
        path for path in root.rglob("*.jsonl*")
        if plain_name(path.name).endswith(".jsonl") and plain_name(path.name) not in NOT_ROLLOUTS
        and not any(part.startswith(".") for part in path.relative_to(root).parts) and path.is_file()
    )  # fmt: skip
    return sorted(read_once(found))


def match_of(text: str, field: str) -> str:
    """An FTS5 expression for words that stand after each other, the last one by its beginning; empty for none."""
    words = re.findall(r"\w+", text)
    if not words:
        return ""
    phrase = '"' + " ".join(words) + '"' + ("*" if text[-1:].isalnum() or text.endswith("_") else "")
    return f"{{{field}}} : {phrase}" if field else phrase


def _conditions(query: Query) -> tuple[str, str, list[Any]]:
    """Tables, WHERE clause and values."""
    join = "rollouts r"
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        parts.append(condition)
        values.extend(given)

    if query.text.strip():
        expression = match_of(query.text, query.field if query.field in FIELDS else "")
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
    for column in ("task", "verdict", "stop", "selection"):
        if value := getattr(query, column):
            add(f"r.{column} = ?", value)
    if query.error:
        add("(' ' || r.errors || ' ') LIKE ? ESCAPE '\\'", f"% {_escaped(query.error)} %")
    if query.failed:
        add("r.failures > 0")
    if query.dropped:
        add("r.selection NOT IN ('', 'kept')")
    if query.repair == "none":
        add("r.repair = ''")
    elif query.repair == "any":
        add("r.repair != ''")
    elif query.repair:
        add("(' ' || r.repair || ' ') LIKE ?", f"% {_escaped(query.repair)} %")
    if query.tokens is not None:
        add("r.tokens BETWEEN ? AND ?", *query.tokens)
    if query.names is not None:
        add(f"r.name IN ({','.join('?' * len(query.names))})", *query.names)
    return join, f"WHERE {' AND '.join(parts)}" if parts else "", values


def _escaped(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


_COLUMNS = SHOWN[1:]
_MARKS = ", ".join("?" * (4 + len(_COLUMNS)))
_INSERT = f"INSERT INTO rollouts(id, source, member, place, {', '.join(_COLUMNS)}) VALUES ({_MARKS})"
_INSERT_TEXTS = f"INSERT INTO texts(rowid, {', '.join(FIELDS)}) VALUES (?, ?, ?, ?, ?)"


def _row_of(rollout: _Rollout) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The values of _COLUMNS, and of FIELDS."""
    words: list[str] = []
    code: list[str] = []
    output: list[str] = []
    repairs: list[str] = []
    errors: list[str] = []
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
                    errors.append(seen.error_type or seen.status)
    prompt = "".join(segment.text for segment in rollout.prompt)
    tokens += sum(bytes(s.ids).count(b",") + 1 for s in rollout.prompt if s.ids)
    made, training = rollout.provenance or _Provenance(), rollout.training or _Training()
    verdict = "" if rollout.reward is None else "right" if rollout.reward > 0 else "wrong"
    return (
        rollout.id, rollout.task, made.step, made.index, rollout.reward, verdict, rollout.stop,
        " ".join(dict.fromkeys(repairs)), rollout.selection or "", " ".join(dict.fromkeys(errors)).replace("\n", " "),
        len(rollout.turns), calls, len(errors), tokens, training.advantage, training.staleness, training.seconds,
        rollout.answer and rollout.answer[:QUESTION], rollout.expected and rollout.expected[:QUESTION],
        rollout.reason and rollout.reason[:QUESTION], rollout.branch and rollout.branch.parent, _shown(prompt),
    ), (prompt, "\n".join(words), "\n".join(code), "\n".join(output))  # fmt: skip


def _shown(prompt: str) -> str:
    """The end of a prompt, which has the question, without the template's marks."""
    return " ".join(_ROLE_MARK.sub(" ", prompt[-1000:]).split())[-QUESTION:]


def keep_indexed(folder: Path) -> Any:
    """Return what adds a new file of a run to its index; an index that fails is left to its reader."""

    def add(file: Path) -> None:
        with suppress(sqlite3.Error, RetconError, OSError), closing(Index(folder)) as index:
            index.add_file(file)

    return add
