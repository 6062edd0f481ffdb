"""Purifying files: which goes where, what is kept when it stops, and how it is gone on with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Protocol

import msgspec

from retcon.core.errors import RecordError, RetconError, nearest
from retcon.purify.offline import Offline
from retcon.store.compression import plain_name
from retcon.store.outputs import Output
from retcon.store.parquet import ParquetWriter
from retcon.store.partial import SUFFIX, Partial
from retcon.store.records import KINDS, STDIN, WHOLE, Record, Source, Writer, open_source, writer
from retcon.transcripts.ahead import Ahead, Pool, Work
from retcon.transcripts.report import SHOWN, Count, total
from retcon.transcripts.run import Purifier, Sinks
from retcon.transcripts.sample import Sampled, sampled

STATE = "retcon-purify" + SUFFIX + ".json"


class Stopped(Exception):
    """Stopped before the end. kept: what can be gone on from, None where nothing can."""

    def __init__(self, message: str, kept: Path | None) -> None:
        super().__init__(message)
        self.kept = kept


@dataclass(frozen=True, slots=True)
class Job:
    """inputs: files, or `-`; out: a file, a folder (into_folder), or `-`. names: each input's name in the folder.
    jobs: processes; how many is no part of what is made, so that a run may be gone on with by more or fewer."""

    inputs: Sequence[Path]
    out: Path
    into_folder: bool
    names: Sequence[str]
    offline: Offline
    format: str = "auto"
    drop_unrepaired: bool = False
    skip_bad: bool = False
    audit: Path | None = None
    pairs: Path | None = None
    jobs: int = 1

    @property
    def state_path(self) -> Path:
        return self.out / STATE if self.into_folder else self.out.with_name(self.out.name + SUFFIX + ".json")

    def outputs(self) -> list[Output]:
        """The files that it writes: an output for each input in a folder, else one; then audit and pairs."""
        files: list[Output] = []
        if self.into_folder:
            files = [_output("-o", self.out / name) for name in self.names]
        elif self.out != STDIN:
            files = [_output("-o", self.out, self.state_path.name)]
        rest = (("--audit", self.audit), ("--dpo", self.pairs))
        return files + [_output(flag, path) for flag, path in rest if path is not None]

    def options(self) -> dict[str, object]:
        """What must be the same for going on."""
        return {
            "inputs": [str(p) for p in self.inputs],
            "format": self.format,
            "drop_unrepaired": self.drop_unrepaired,
            "audit": str(self.audit),
            "pairs": str(self.pairs),
            **asdict(self.offline),
        }


@dataclass(slots=True)
class _State:
    """How far a job is: `records` of input `file` are done; sizes of the partial files; counts so far."""

    options: dict[str, object]
    file: int = 0
    records: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    counts: list[dict[str, object]] = field(default_factory=list)


def _output(flag: str, path: Path, *beside: str) -> Output:
    return Output(flag, path, (path.name + SUFFIX, *beside))


class _Sink(Protocol):
    out: IO[bytes]

    def pause(self) -> int: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class _Stdout:
    def __init__(self) -> None:
        self.out: IO[bytes] = sys.stdout.buffer

    def pause(self) -> int:
        self.out.flush()
        return 0

    def commit(self) -> None:
        self.out.flush()

    def discard(self) -> None:
        """What was written is gone."""


class Run:
    """One run of a job. bad: what was wrong with records that were skipped, the first of them."""

    def __init__(self, job: Job, *, resume: bool = False) -> None:
        self.job = job
        self.bad: list[str] = []
        self.counts: list[Count] = []
        if not resume and job.out != STDIN and job.state_path.exists():
            raise RecordError(
                f"{job.state_path} is of a run that was interrupted: go on with --resume, or remove it to begin anew"
            )
        self._writing: Writer | None = None
        self._state = _load(job) if resume else _State(job.options())
        self._total = sum(p.stat().st_size for p in job.inputs if p != STDIN and p.exists())
        self._done = 0
        self._pool: Pool | None = None

    def __call__(self, tell: Callable[[int, int], None], stop: Callable[[], bool]) -> list[Count]:
        """The counts of each input. tell: takes MB done and in all. stop: asked after each record.

        Raises Stopped, with what was done kept, where `stop` says so or a record is bad; RecordError where a file
        cannot be read or written at all.
        """
        state = self._state
        self.counts = [Count.from_dict(c) for c in state.counts]
        kept: dict[str, _Sink] = {}
        for name, path in (("audit", self.job.audit), ("pairs", self.job.pairs)):
            if path is not None:
                kept[name] = Partial(path, state.sizes.get(name) if state.sizes else None)
        self._pool = Pool(self.job.jobs) if self.job.jobs > 1 else None
        try:
            for index in range(state.file, len(self.job.inputs)):
                self._one(index, kept, tell, stop)
        except RetconError:
            if not state.sizes:  # what an earlier run has done stays
                for sink in kept.values():
                    sink.discard()
            raise
        finally:
            if self._pool is not None:
                self._pool.close()
        out = kept.pop("out", None)
        for sink in (*kept.values(), *([out] if out is not None else [])):
            sink.commit()
        if self.job.out != STDIN:
            self.job.state_path.unlink(missing_ok=True)
        return self.counts

    def _one(
        self, index: int, kept: dict[str, _Sink], tell: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> None:
        """One input; `kept` has the files that are open, `out` among them where it is one for all."""
        job, state = self.job, self._state
        try:
            first = sampled(open_source(job.inputs[index]), job.format, skip_bad=job.skip_bad)
        except RecordError as error:
            if index == 0:
                raise  # nothing was done yet
            raise self._stopped(str(error), index, 0, None, kept) from error
        source = first.source
        going_on = index == state.file and state.records > 0
        skip = state.records if index == state.file else 0
        if "out" not in kept:
            size = state.sizes.get("out") if index == state.file and state.sizes else None
            kept["out"] = self._open(index, size if going_on or not job.into_folder else None)
        begun = (index > 0 and not job.into_folder) or going_on
        write = self._writing
        if write is None or not isinstance(write, ParquetWriter):  # which is one for all inputs
            write = self._writing = _writer(source, kept["out"].out, job, index, going_on=begun)
        if len(self.counts) == index:
            self.counts.append(Count())
        purifier, records = self._purifier(first, kept, self.counts[index], skip)
        before = self._done
        done = 0
        try:
            if not begun:
                write.begin()
            for number, record in enumerate(records, 1):
                if number <= skip:
                    done = number
                    continue
                try:
                    data = purifier(record)
                except RecordError as error:
                    if not job.skip_bad:
                        why = f"{error}{first.detector.others(record.number)}"
                        raise self._stopped(why, index, done, source, kept) from error
                    purifier.count.bad += 1
                    if len(purifier.count.bad_at) < SHOWN:
                        purifier.count.bad_at.append(record.number)
                    if len(self.bad) < SHOWN:
                        self.bad.append(str(error))
                    data = None
                if data is not None:
                    write.add(record, data)
                done = number
                if number % 64 == 0:
                    self._done = before + source.read()
                    tell(self._done >> 20, max(self._total, self._done) >> 20)
                if stop():
                    raise self._stopped("interrupted", index, number, source, kept)
            last = index + 1 == len(job.inputs)
            if job.into_folder or last:
                write.end()
        except RecordError as error:
            raise self._stopped(str(error), index, done, source, kept) from error
        except OSError as error:
            raise RecordError(f"{job.out} cannot be written: {error}") from error
        self._done = before + source.read()
        tell(self._done >> 20, max(self._total, self._done) >> 20)
        if job.into_folder:
            self._writing = None
            kept.pop("out").commit()

    def _purifier(
        self, first: Sampled, kept: Mapping[str, _Sink], count: Count, skip: int
    ) -> tuple[Purifier | Ahead, Iterable[Record]]:
        """What purifies the records of a source, and these; on several cores where the job says so."""
        job, (source, detector, values) = self.job, first
        sinks = Sinks(*(kept[n].out.write if n in kept else None for n in ("audit", "pairs")))
        if self._pool is None:
            purifier = Purifier(
                job.offline, detector, sinks, count, drop_unrepaired=job.drop_unrepaired, values=values
            )  # fmt: skip
            return purifier, source.records
        values.clear()  # each process decodes its own
        work = Work(job.offline, job.format, detector.decided, job.drop_unrepaired, "audit" in kept, "pairs" in kept)
        ahead = Ahead(self._pool, source.records, work, sinks, count, skip=skip)
        return ahead, ahead

    def _open(self, index: int, size: int | None) -> _Sink:
        job = self.job
        if job.out == STDIN:
            return _Stdout()
        return Partial(job.out / job.names[index] if job.into_folder else job.out, size)

    def _stopped(self, why: str, index: int, records: int, source: Source | None, kept: dict[str, _Sink]) -> Stopped:
        """Close everything and write down how far it is. Shapes that are written in one go are begun anew."""
        sizes = {name: sink.pause() for name, sink in kept.items()}
        again = (source is not None and source.shape in WHOLE) or isinstance(self._writing, ParquetWriter)
        if self.job.out == STDIN or STDIN in self.job.inputs or again:
            return Stopped(why, None)
        counts = [c.to_dict() for c in self.counts]
        state = _State(self.job.options(), index, records, sizes, counts)
        self.job.state_path.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        return Stopped(why, self.job.state_path)


def _writer(source: Source, out: IO[bytes], job: Job, index: int, *, going_on: bool) -> Writer:
    """The source's own shape, unless the name of the output asks for lines or for Parquet."""
    joined = len(job.inputs) > 1 and not job.into_folder
    name = plain_name(job.names[index] if job.into_folder else job.out.name)
    kind = next((k for k in (".jsonl", ".parquet") if name.endswith(k)), "")
    if source.shape in ("log", "eval") and not kind:
        if joined:
            raise RecordError(f"{source.path}: a log cannot be joined with other files; give a folder with -o FOLDER/")
        if source.shape == "eval" and job.out == STDIN:
            raise RecordError(f"{source.path}: an .eval log cannot go to standard output; give -o FILE.eval")
    elif source.shape in ("document", "parquet") and not kind and (joined or source.shape == "parquet"):
        kind = ".jsonl"
    return writer(source, out, kind=kind, going_on=going_on, joined=joined)


def _load(job: Job) -> _State:
    """How far the job was. Raises RecordError where nothing was kept, or of another job."""
    path = job.state_path
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        done = next((o.path for o in job.outputs() if o.path.exists()), None)
        if done is not None:
            raise RecordError(f"{done} is finished: nothing to go on with; --force makes it anew") from None
        raise RecordError(f"nothing to go on with: there is no {path}; leave --resume out to begin") from None
    except (msgspec.DecodeError, OSError) as error:
        raise RecordError(f"{path} cannot be read: {error}; remove it to begin anew") from error
    options = json.loads(json.dumps(job.options()))
    other = [name for name, value in options.items() if state.options.get(name) != value]
    if other:
        raise RecordError(f"{path} is of a run with another {', '.join(other)}; remove it to begin anew")
    return state


def expand(words: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """The files that words mean, each with its name below the folder that it was found in.

    A word is a file, a folder (all transcripts below it), a pattern, or `-`. Raises RecordError for one that is none.
    """
    for word in words:
        path = Path(word)
        if word == "-":
            yield STDIN, "stdin.jsonl"
        elif path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and _is_transcript_file(p))
            if not found:
                raise RecordError(f"{path}: no file in this folder or below is {', '.join(KINDS[:-1])} or {KINDS[-1]}")
            yield from ((p, str(p.relative_to(path))) for p in found)
        elif path.exists():
            yield path, path.name
        elif any(c in word for c in "*?["):
            root = Path(path.anchor) if path.is_absolute() else Path()
            matches = sorted(p for p in root.glob(str(path.relative_to(root))) if p.is_file())
            if not matches:
                raise RecordError(f"no file matches {word}")
            yield from ((p, p.name) for p in matches)
        else:
            siblings = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise RecordError(f"{path} does not exist{nearest(str(path), siblings)}")


def _is_transcript_file(path: Path) -> bool:
    name = plain_name(path.name)
    ours = name.endswith((".audit.jsonl", SUFFIX, SUFFIX + ".json"))
    return name.endswith(KINDS) and not ours and not name.startswith(".")


def write_report(path: Path, run: Run) -> None:
    """All counts as JSON: `files`, each with its name, and `total`; `options` says with what they were made."""
    files = [{"file": str(p)} | c.to_dict() for p, c in zip(run.job.inputs, run.counts, strict=True)]
    whole = total(run.counts).to_dict()
    del whole["examples"]
    body = {"version": 1, "options": run.job.options(), "total": whole, "files": files}
    out = Partial(path)
    out.out.write(msgspec.json.format(msgspec.json.encode(body)) + b"\n")
    out.commit()
