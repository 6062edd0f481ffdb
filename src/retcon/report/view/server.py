"""The local server of `retcon view`: lists, trajectories and curves as JSON, on loopback, under a random token."""

from __future__ import annotations

import asyncio
import heapq
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from aiohttp import web

from retcon.core.errors import RecordError, RetconError
from retcon.report.runs import named
from retcon.runs.metrics import read_metrics
from retcon.store.index import FACETS, Index, Query
from retcon.store.lines import LineAppender

REFRESH_SECONDS = 2.0
"""Between looks at files that may have grown."""
MOST_ROWS = 500
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
class ViewedRun:
    """A folder or file that is shown. lock: of its index, one thread at a time."""

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
    """What the page shows, read from files: runs, rows, counts, trajectories, tokens, notes."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.runs = [ViewedRun(name, root, Index(root)) for name, root in named(roots).items()]
        self._ending = threading.Event()
        self._tokenizers: dict[Path, Any] = {}

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

    def run(self, given: str) -> ViewedRun:
        if not given.isdecimal() or int(given) >= len(self.runs):
            raise RecordError(f"there is no run {given}")
        return self.runs[int(given)]

    def overview(self) -> list[dict[str, Any]]:
        """Each run: name, how many rollouts, whether it is being indexed, what is wrong with its files."""
        found = []
        for run in self.runs:
            with run.lock:
                total, problems = run.index.counts(Query()).total, run.index.problems()
            has = run.root.is_dir() and run.metrics_file.is_file()
            finished = (run.root / "final").is_dir()
            found.append({"name": run.name, "rollouts": total, "problems": problems, "indexing": run.indexing,
                          "metrics": has, "finished": finished})  # fmt: skip
        return found

    def metrics(self, run: ViewedRun) -> list[Any]:
        return list(read_metrics(run.metrics_file, cut_off=True)) if run.metrics_file.is_file() else []

    def rows(self, asked: dict[str, str]) -> list[dict[str, Any]]:
        """A page of the list: of one run, or of all in one order."""
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
        """How many fit, in all and by facet."""
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

    def _query(self, asked: dict[str, str]) -> Query:
        first, _, last = asked.get("step", "").partition("-")
        step = (int(first), int(last or first)) if first.isdecimal() and (last or first).isdecimal() else None
        plain = ("text", "field", "task", "group", "verdict", "stop", "error", "repair", "selection")
        tag = asked.get("tag", "")
        return Query(
            **{name: asked.get(name, "") for name in plain},  # type: ignore[arg-type]
            step=step,
            failed="failed" in asked,
            dropped="dropped" in asked,
            names=(tag,) if tag else None,
            sort=asked.get("sort") or "id",
        )

    def _tagged(self, run: ViewedRun, query: Query) -> Query:
        """The query with the ids that have its tag, in place of the tag."""
        if query.names is None:
            return query
        (tag,) = query.names
        return replace(query, names=tuple(n for n, note in self.notes(run).items() if tag in note.get("tags", ())))

    def line(self, run: ViewedRun, number: int) -> bytes:
        with run.lock:
            return run.index.line(number)

    def notes(self, run: ViewedRun) -> dict[str, dict[str, Any]]:
        """Tags and notes by the rollout's id; the last line of each counts."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            for line in run.notes_file.read_bytes().splitlines():
                with suppress(ValueError, KeyError):
                    said = json.loads(line)
                    found[said["id"]] = said
        return found

    def add_note(self, run: ViewedRun, said: dict[str, Any]) -> None:
        """Keep tags and a note of one rollout beside the run."""
        kept = {
            "id": str(said["id"]),
            "tags": [str(t) for t in said.get("tags", ())],
            "note": str(said.get("note", "")),
        }
        with LineAppender(run.notes_file) as lines:
            lines.add(json.dumps({**kept, "time": round(time.time())}).encode() + b"\n", name="the note")

    def tokens(self, run: ViewedRun, number: int) -> list[list[str]] | None:
        """The text of each token of each segment, prompt first; None where the run's tokenizer is not there."""
        tokenizer = self._tokenizer(run.root)
        if tokenizer is None:
            return None
        made = json.loads(self.line(run, number))
        segments = [*made["prompt"], *(s for turn in made["turns"] for s in turn["segments"])]
        pieces = {id: tokenizer.decode([id], skip_special_tokens=False) for s in segments for id in s.get("ids") or ()}
        return [[pieces[id] for id in s.get("ids") or ()] for s in segments]

    def _tokenizer(self, root: Path) -> Any:
        if root not in self._tokenizers:
            places = (root / "final", *sorted((root / "checkpoints").glob("step-*"), reverse=True))
            there = next((p / "tokenizer.json" for p in places if (p / "tokenizer.json").is_file()), None)
            self._tokenizers[root] = None
            with suppress(ImportError):
                from tokenizers import Tokenizer

                if there is not None:
                    self._tokenizers[root] = Tokenizer.from_file(str(there))
        return self._tokenizers[root]

    def exported(self, asked: dict[str, str]) -> Iterator[bytes]:
        """The lines of all rollouts that fit, as they stand in their files."""
        chosen = asked.get("run", "")
        for number, run in enumerate(self.runs):
            if chosen and int(chosen) != number:
                continue
            with run.lock:
                query = self._tagged(run, self._query(asked))
                found = [row["id"] for row in run.index.rows(query, 1_000_000_000)]
            for id in found:
                yield self.line(run, id)


def make_app(viewer: Viewer, token: str) -> web.Application:
    """The application; everything is below `/TOKEN/`, and nothing else answers."""

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

    async def note(request: web.Request) -> web.Response:
        said = await request.json()
        if request.headers.get("Origin", "").partition("//")[2] not in ("", request.host):
            return web.Response(status=403, headers=HEADERS)
        await asyncio.to_thread(viewer.add_note, viewer.run(str(said["run"])), said)
        return web.json_response({}, headers=HEADERS)

    async def export(request: web.Request) -> web.StreamResponse:
        disposition = {"Content-Disposition": 'attachment; filename="rollouts.jsonl"'}
        response = web.StreamResponse(headers={**HEADERS, **disposition, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        lines = viewer.exported(dict(request.query))
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            await response.write(line)
        return response

    def of_run(work: Callable[[ViewedRun, dict[str, str]], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return answering(lambda _, asked: work(viewer.run(asked.get("run", "")), asked))

    app = web.Application(client_max_size=1 << 20)
    app.router.add_get(f"/{token}/api/runs", answering(lambda *_: viewer.overview()))
    app.router.add_get(f"/{token}/api/rows", answering(lambda _, asked: viewer.rows(asked)))
    app.router.add_get(f"/{token}/api/counts", answering(lambda _, asked: viewer.counts(asked)))
    app.router.add_get(f"/{token}/api/metrics", of_run(lambda run, _: viewer.metrics(run)))
    app.router.add_get(f"/{token}/api/line", of_run(lambda run, asked: viewer.line(run, int(asked["id"]))))
    app.router.add_get(f"/{token}/api/tokens", of_run(lambda run, asked: viewer.tokens(run, int(asked["id"]))))
    app.router.add_get(f"/{token}/api/notes", of_run(lambda run, _: viewer.notes(run)))
    app.router.add_get(f"/{token}/api/export", export)
    app.router.add_post(f"/{token}/api/note", note)
    app.router.add_get(f"/{token}/{{path:.*}}", static)
    return app


def new_token() -> str:
    return secrets.token_urlsafe(18)
