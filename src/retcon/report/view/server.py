"""Local server of `retcon view`: JSON on loopback under a random token."""

from __future__ import annotations

import asyncio
import heapq
import json
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from aiohttp import web

from retcon.core.errors import RecordError, RetconError
from retcon.core.types import Trajectory
from retcon.report.runs import unique_names
from retcon.report.view.export import FORMATS, NAMES, Format, write_selection
from retcon.runs.metrics import read_metrics
from retcon.store.index import FACETS, Index, Query, parse_range
from retcon.store.jsonl import read_line
from retcon.store.lines import LineAppender

REFRESH_SECONDS = 2.0
"""Seconds between checks for files that have grown."""
MOST_ROWS = 500
MOST_REPLAYS = 64
"""Most rollouts of each counterfactual that the page may request."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATIC = {
    "": ("index.html", "text/html"),
    "app.js": ("app.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
    "vendor/htm-preact-3.1.1.js": ("vendor/htm-preact-3.1.1.js", "text/javascript"),
    "vendor/uplot-1.6.32.js": ("vendor/uplot-1.6.32.js", "text/javascript"),
    "vendor/uplot-1.6.32.css": ("vendor/uplot-1.6.32.css", "text/css"),
}


@dataclass(slots=True)
class IndexedRun:
    """A run folder or file with its index. lock: of the index, one thread at a time."""

    name: str
    root: Path
    index: Index
    lock: threading.Lock = field(default_factory=threading.Lock)
    indexing: bool = True

    @property
    def metrics_file(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def notes_file(self) -> Path:
        return self.root / "notes.jsonl" if self.root.is_dir() else self.root.with_name(self.root.name + ".notes.jsonl")


class Viewer:
    """Data of the page, read from files: runs, rows, counts, trajectories, tokens, notes."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.runs = [IndexedRun(name, root, Index(root)) for name, root in unique_names(roots).items()]
        self._ending = threading.Event()
        self._tokenizers: dict[tuple[Path, str], Any] = {}

    def follow(self) -> threading.Thread:
        """Keep the indexes up to date in a thread, until `close`."""
        thread = threading.Thread(target=self._follow, name="index", daemon=True)
        thread.start()
        return thread

    def _follow(self) -> None:
        indexes = [Index(run.root, run.index.path) for run in self.runs]
        while not self._ending.is_set():
            for run, index in zip(self.runs, indexes, strict=True):
                with suppress(RetconError, OSError):
                    index.update()
                run.indexing = False
            self._ending.wait(REFRESH_SECONDS)

    def close(self) -> None:
        self._ending.set()

    def run(self, given: str) -> IndexedRun:
        if not given.isdecimal() or int(given) >= len(self.runs):
            raise RecordError(f"there is no run {given}")
        return self.runs[int(given)]

    def overview(self) -> list[dict[str, Any]]:
        """List the runs: name, number of rollouts, indexing state, faults of its files."""
        found = []
        for run in self.runs:
            with run.lock:
                total, problems = run.index.counts(Query()).total, run.index.problems()
            has = run.root.is_dir() and run.metrics_file.is_file()
            checkpoint = any((run.root / name).is_dir() for name in ("final", "checkpoints"))
            finished = (run.root / "final").is_dir()
            found.append({"name": run.name, "rollouts": total, "problems": problems, "indexing": run.indexing,
                          "metrics": has, "finished": finished, "checkpoint": checkpoint})  # fmt: skip
        return found

    def metrics(self, run: IndexedRun) -> list[Any]:
        return list(read_metrics(run.metrics_file, cut_off=True)) if run.metrics_file.is_file() else []

    def rows(self, asked: dict[str, str]) -> list[dict[str, Any]]:
        """Return a page of the list, of one or all runs."""
        query, limit = self._query(asked), min(int(asked.get("limit", 100)), MOST_ROWS)
        offset = int(asked.get("offset", 0))
        if chosen := asked.get("run", ""):
            return self._rows(int(chosen), query, limit, offset)
        parts = [self._rows(n, query, limit + offset, 0) for n in range(len(self.runs))]
        if len(parts) == 1:
            return parts[0][offset:]
        name = query.sort.removeprefix("-")

        def key(row: dict[str, Any]) -> tuple[bool, Any]:
            value = row["step"] or 0 if name == "id" else row[name]
            return (value is not None, value)

        return list(heapq.merge(*parts, key=key, reverse=query.sort.startswith("-")))[offset : offset + limit]

    def _rows(self, number: int, query: Query, limit: int, offset: int) -> list[dict[str, Any]]:
        run = self.runs[number]
        with run.lock:
            found = run.index.rows(self._tagged(run, query), limit, offset)
        return [{**row, "run": number} for row in found]

    def counts(self, asked: dict[str, str]) -> dict[str, Any]:
        """Count the matching rollouts, in all and by facet."""
        query, chosen = self._query(asked), asked.get("run", "")
        total, facets = 0, {name: Counter[str]() for name in FACETS}
        for number, run in enumerate(self.runs):
            if chosen and int(chosen) != number:
                continue
            with run.lock:
                found = run.index.counts(self._tagged(run, query))
            total += found.total
            for name, values in found.facets.items():
                facets[name].update(values)
        return {"total": total, "facets": facets, "indexing": any(run.indexing for run in self.runs)}

    def steps(self, run: IndexedRun, asked: dict[str, str]) -> list[tuple[int, int]]:
        """Count the matching rollouts of each step."""
        with run.lock:
            return run.index.steps(self._tagged(run, self._query(asked)))

    def failures(self, run: IndexedRun, asked: dict[str, str]) -> list[dict[str, Any]]:
        with run.lock:
            return run.index.failures(asked.get("text", ""))

    def tasks(self, run: IndexedRun) -> list[dict[str, Any]]:
        with run.lock:
            return run.index.tasks()

    def message(self, run: IndexedRun, asked: dict[str, str]) -> int | None:
        """Return the id of the message with which a call failed."""
        made = self._trajectory(run, int(asked["id"]))
        turn, attempt, call = (int(asked[name]) for name in ("turn", "attempt", "call"))
        at = made.turns[turn] if attempt < 0 else made.turns[turn].abandoned[attempt]
        seen = at.observations[call]
        with run.lock:
            return run.index.message_of(seen.error_type or seen.status, seen.text)

    def _trajectory(self, run: IndexedRun, number: int) -> Trajectory:
        return read_line(self.line(run, number), run.name)

    def _query(self, asked: dict[str, str]) -> Query:
        plain = ("text", "field", "task", "group", "verdict", "stop", "error", "repair", "selection", "parent")
        tag, message = asked.get("tag", ""), asked.get("message", "")
        return Query(
            **{name: asked.get(name, "") for name in plain},
            step=parse_range(asked.get("step", "")),
            tokens=parse_range(asked.get("tokens", "")),
            tree=parse_range(asked.get("tree", "")),
            message=int(message) if message.isdecimal() else None,
            failed="failed" in asked,
            dropped="dropped" in asked,
            names=(tag,) if tag else None,
            sort=asked.get("sort") or "id",
        )

    def _tagged(self, run: IndexedRun, query: Query) -> Query:
        """The query with the ids that have its tag, in place of the tag."""
        if query.names is None:
            return query
        (tag,) = query.names
        return replace(query, names=tuple(n for n, note in self.notes(run).items() if tag in note.get("tags", ())))

    def line(self, run: IndexedRun, number: int) -> bytes:
        with run.lock:
            return run.index.line(number)

    def found(self, run: IndexedRun, asked: dict[str, str]) -> dict[str, Any]:
        """Return a rollout's row by number, or by id after a reindex."""
        number, name = int(asked.get("id") or 0), asked.get("name", "")
        with run.lock:
            row = run.index.row(number)
            if name and (row is None or row["name"] != name):
                number = run.index.number_of(name) or 0
                row = run.index.row(number)
        if row is None:
            raise RecordError(f"{run.root}: there is no rollout {name or number}")
        return row

    def change(self, run: IndexedRun, body: dict[str, Any]) -> dict[str, Any]:
        """Delete a rollout, or redact a text in it, in its file."""
        number, text = int(body["id"]), body.get("text")
        with run.lock:
            if text is None:
                run.index.delete(number)
                return {}
            name = (run.index.row(number) or {}).get("name", "")
            return {"count": run.index.redact(number, str(text)), "name": name}

    def replay(self, run: IndexedRun, body: dict[str, Any]) -> dict[str, Any]:
        """Run a call's program again in the sandbox."""
        from retcon.report.view.replay import run_again

        made, code = self._trajectory(run, int(body["id"])), body.get("code")
        turn, attempt, call = (int(body[name]) for name in ("turn", "attempt", "call"))
        again = asyncio.run(run_again(run.root, made, turn, attempt, call, None if code is None else str(code)))
        return {"status": again.status, "error_type": again.error_type, "text": again.text, "seconds": again.seconds}

    def counterfactuals(self, run: IndexedRun, body: dict[str, Any]) -> dict[str, Any]:
        """Roll out what else could have happened at a failed turn."""
        from retcon.report.view.replay import run_counterfactuals

        times = min(max(int(body.get("times", 4)), 1), MOST_REPLAYS)
        return run_counterfactuals(run.root, self._trajectory(run, int(body["id"])), int(body["turn"]), times)

    def notes(self, run: IndexedRun) -> dict[str, dict[str, Any]]:
        """Return tags and notes by rollout id; the last line of each counts."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            for line in run.notes_file.read_bytes().splitlines():
                with suppress(ValueError, KeyError):
                    body = json.loads(line)
                    found[body["id"]] = body
        return found

    def add_note(self, run: IndexedRun, body: dict[str, Any]) -> None:
        """Store tags and a note of one rollout beside the run."""
        kept = {
            "id": str(body["id"]),
            "tags": [str(t) for t in body.get("tags", ())],
            "note": str(body.get("note", "")),
        }
        with LineAppender(run.notes_file) as lines:
            lines.add(json.dumps({**kept, "time": round(time.time())}).encode() + b"\n", name="the note")

    def tokens(self, run: IndexedRun, number: int) -> list[list[str]] | None:
        """Return each token's text by segment, prompt first; None without the tokenizer."""
        made = json.loads(self.line(run, number))
        if self._tokenizer(run.root, made) is None:
            return None
        pieces = self.pieces(run, made, {})
        return [[pieces[id] for id in s.get("ids") or ()] for s in _segments(made)]

    def pieces(self, run: IndexedRun, made: dict[str, Any], known: Mapping[int, str]) -> dict[int, str]:
        """Decode the trajectory's token ids that are not in `known`; {} without a tokenizer."""
        if (tokenizer := self._tokenizer(run.root, made)) is None:
            return {}
        ids = {id for segment in _segments(made) for id in segment.get("ids") or ()} - known.keys()
        return {id: tokenizer.decode([id], skip_special_tokens=False) for id in ids}

    def _tokenizer(self, root: Path, made: dict[str, Any]) -> Any:
        """The tokenizer of a run, of the run that holds an evaluation, or of the model that a rollout names."""
        named = (made.get("provenance") or {}).get("model") or ""
        if (root, named) not in self._tokenizers:
            runs = (root, root.parent)
            places = [folder for run in runs for folder in (run / "final", *sorted(run.glob("checkpoints/step-*")))]
            files = (place / "tokenizer.json" for place in (*places, Path(named)))
            there = next((file for file in files if file.is_file()), None)
            self._tokenizers[root, named] = None
            with suppress(ImportError):
                from tokenizers import Tokenizer

                if there is not None:
                    self._tokenizers[root, named] = Tokenizer.from_file(str(there))
        return self._tokenizers[root, named]

    def exported(self, asked: dict[str, str]) -> Iterator[bytes]:
        """Yield the stored lines of all matching rollouts."""
        chosen = asked.get("run", "")
        for number, run in enumerate(self.runs):
            if chosen and int(chosen) != number:
                continue
            with run.lock:
                found = run.index.numbers(self._tagged(run, self._query(asked)))
            for id in found:
                yield self.line(run, id)

    def write_export(self, format: Format, asked: dict[str, str], path: Path) -> None:
        """Write the matching rollouts to a file."""
        write_selection(format, self.exported(asked), path, name=" ".join(run.name for run in self.runs))


def _segments(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [*made["prompt"], *(segment for turn in made["turns"] for segment in turn["segments"])]


def make_app(viewer: Viewer, token: str) -> web.Application:
    """Return the application; it answers only below `/TOKEN/`."""

    def answering(
        work: Callable[[web.Request, dict[str, str]], Any],
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                found = await asyncio.to_thread(work, request, dict(request.query))
            except (RetconError, ValueError, OSError) as error:
                return web.json_response({"error": str(error)}, status=400, headers=HEADERS)
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            return web.Response(body=body, content_type="application/json", headers=HEADERS)

        return handle

    async def static(request: web.Request) -> web.Response:
        if (found := STATIC.get(request.match_info["path"])) is None:
            return web.Response(status=404, headers=HEADERS)
        body = files("retcon.report.view").joinpath("static", found[0]).read_bytes()
        return web.Response(body=body, content_type=found[1], charset="utf-8", headers=HEADERS)

    def changing(work: Callable[[IndexedRun, dict[str, Any]], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if request.headers.get("Origin", "").partition("//")[2] not in ("", request.host):
                return web.Response(status=403, headers=HEADERS)
            body = await request.json()
            asked = partial(work, viewer.run(str(body["run"])), body)
            return await answering(lambda *_: asked() or {})(request)

        return handle

    async def export(request: web.Request) -> web.StreamResponse:
        asked = dict(request.query)
        format = asked.get("format", "jsonl")
        if format not in FORMATS:
            return web.json_response({"error": f"no format {format}"}, status=400, headers=HEADERS)
        with tempfile.TemporaryDirectory(prefix="retcon-view-") as folder:
            path = Path(folder) / NAMES[format]
            try:
                await asyncio.to_thread(viewer.write_export, format, asked, path)
            except (RetconError, OSError) as error:
                return web.Response(text=f"{error}\n", status=400, headers=HEADERS)
            disposition = {"Content-Disposition": f'attachment; filename="{path.name}"'}
            response = web.StreamResponse(
                headers={**HEADERS, **disposition, "Content-Type": "application/octet-stream"}
            )
            await response.prepare(request)
            with path.open("rb") as file:
                while part := await asyncio.to_thread(file.read, 1 << 20):
                    await response.write(part)
        return response

    def of_run(work: Callable[[IndexedRun, dict[str, str]], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return answering(lambda _, asked: work(viewer.run(asked.get("run", "")), asked))

    def of_rollout(work: Callable[[IndexedRun, int], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return of_run(lambda run, asked: work(run, viewer.found(run, asked)["id"]))

    app = web.Application(client_max_size=1 << 20)
    app.router.add_get(f"/{token}/api/runs", answering(lambda *_: viewer.overview()))
    app.router.add_get(f"/{token}/api/rows", answering(lambda _, asked: viewer.rows(asked)))
    app.router.add_get(f"/{token}/api/counts", answering(lambda _, asked: viewer.counts(asked)))
    app.router.add_get(f"/{token}/api/metrics", of_run(lambda run, _: viewer.metrics(run)))
    app.router.add_get(f"/{token}/api/line", of_rollout(viewer.line))
    app.router.add_get(f"/{token}/api/tokens", of_rollout(viewer.tokens))
    app.router.add_get(f"/{token}/api/notes", of_run(lambda run, _: viewer.notes(run)))
    app.router.add_get(f"/{token}/api/row", of_run(viewer.found))
    app.router.add_get(f"/{token}/api/steps", of_run(viewer.steps))
    app.router.add_get(f"/{token}/api/failures", of_run(viewer.failures))
    app.router.add_get(f"/{token}/api/tasks", of_run(lambda run, _: viewer.tasks(run)))
    app.router.add_get(f"/{token}/api/message", of_run(viewer.message))
    app.router.add_get(f"/{token}/api/export", export)
    app.router.add_post(f"/{token}/api/note", changing(viewer.add_note))
    app.router.add_post(f"/{token}/api/change", changing(viewer.change))
    app.router.add_post(f"/{token}/api/replay", changing(viewer.replay))
    app.router.add_post(f"/{token}/api/counterfactuals", changing(viewer.counterfactuals))
    app.router.add_get(f"/{token}/{{path:.*}}", static)
    return app


def new_token() -> str:
    return secrets.token_urlsafe(18)
