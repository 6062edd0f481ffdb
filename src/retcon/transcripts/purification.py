"""Purify files: inputs, outputs, processes, interruption and resumption."""

from __future__ import annotations

import json
import signal
import sys
import traceback
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

import msgspec

from retcon.core.errors import MissingExtra, RecordError, RetconError
from retcon.purify.offline import Repairer
from retcon.store.compression import plain_name
from retcon.store.lines import SUFFIX, PartialFile, WriteFailed, write_error
from retcon.store.parquet import ColumnsError, ParquetWriter
from retcon.store.records import (
    DOCUMENTS,
    LINES,
    STDIN,
    WHOLE,
    DocumentWriter,
    LinesWriter,
    Record,
    Source,
    Writer,
    open_source,
    writer,
)
from retcon.store.whole import OutputFile, write_whole
from retcon.transcripts.detector import Detector, FormatSample, TornLine, sample_records
from retcon.transcripts.purifier import SHOWN, Count, RecordRepairer, Sinks, total

STATE = "retcon-purify" + SUFFIX + ".json"


@dataclass(frozen=True, slots=True)
class Assignment:
    """inputs: files, or `-`; out: a file, a folder (into_folder), or `-`. names: each input's name in the folder.
    failures: by tool, the form of its outputs that are failures, a regular expression.
    jobs: processes; how many is no part of what is made, so that a run may be resumed with more or fewer."""

    inputs: Sequence[Path]
    out: Path
    into_folder: bool
    names: Sequence[str]
    offline: Repairer
    format: str = "auto"
    drop_unrepaired: bool = False
    skip_bad: bool = False
    audit: Path | None = None
    pairs: Path | None = None
    jobs: int = 1
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def state_path(self) -> Path:
        return self.out / STATE if self.into_folder else self.out.with_name(self.out.name + SUFFIX + ".json")

    def labels(self) -> list[str]:
        """Return each input's label in audit and pairs: its name, or path."""
        often = Counter(self.names)
        pairs = zip(self.inputs, self.names, strict=True)
        return [name if often[name] == 1 else str(path) for path, name in pairs]

    def outputs(self) -> list[OutputFile]:
        """Return the files that it writes: an output for each input in a folder, else one; then audit and pairs."""
        files: list[OutputFile] = []
        if self.into_folder:
            files = [_output("-o", self.out / name) for name in self.names]
        elif self.out != STDIN:
            files = [_output("-o", self.out, self.state_path.name)]
        rest = (("--audit", self.audit), ("--dpo", self.pairs))
        return files + [_output(flag, path) for flag, path in rest if path is not None]

    def options(self) -> dict[str, object]:
        """Return the options that must be equal to go on."""
        return {
            "inputs": [str(p) for p in self.inputs],
            "format": self.format,
            "drop_unrepaired": self.drop_unrepaired,
            "audit": None if self.audit is None else str(self.audit),
            "pairs": None if self.pairs is None else str(self.pairs),
            **({"failures": dict(self.failures)} if self.failures else {}),
            **asdict(self.offline),
        }


def _output(flag: str, path: Path, *beside: str) -> OutputFile:
    return OutputFile(flag, path, (path.name + SUFFIX, *beside))


# Processes that compute for this one, any of which may be killed at any moment, in the middle of an answer too.
#
# `concurrent.futures.ProcessPoolExecutor` has one pipe for the answers of all processes: where one is killed that has
# written a part of its answer, it waits for the rest for ever. Here each has a channel of its own, which ends with it.

P = ParamSpec("P")
T = TypeVar("T")


class ProcessKilled(RetconError):
    """A process was killed while it worked; its task may be fine."""


class Processes(Generic[P, T]):
    """Processes that call one function, each with a waiting thread."""

    def __init__(self, number: int, function: Callable[P, T]) -> None:
        """function: of a module, as the processes import it."""
        self.number = number
        self._function = function
        self._threads = ThreadPoolExecutor(number)
        self._started: list[tuple[ForkServerProcess, Connection]] = []
        self._free: SimpleQueue[Connection] = SimpleQueue()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call; the future may raise ProcessKilled. Raises RetconError if no process starts."""
        if not self._started:
            self._start()
        return self._threads.submit(self._ask, *args, **kwargs)

    def close(self) -> None:
        """End them, and what they are at."""
        for process, _ in self._started:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process, channel in self._started:
            process.join()
            channel.close()
        self._started.clear()

    def _start(self) -> None:
        _start_server()
        context = get_context("forkserver")
        try:
            for _ in range(self.number):
                ours, theirs = context.Pipe()
                with theirs:
                    process = context.Process(target=_serve, args=(theirs, self._function), daemon=True)
                    process.start()
                self._started.append((process, ours))
                self._free.put(ours)
        except OSError as error:
            raise RetconError(f"{self.number} processes cannot be started: {error}") from error

    def _ask(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread: there are as many as there are processes, so that one is free."""
        channel = self._free.get()
        try:
            channel.send((args, kwargs))
            answer: T
            error: Exception | None
            answer, error = channel.recv()
        except (EOFError, OSError) as gone:
            raise ProcessKilled("a process was killed") from gone
        finally:
            self._free.put(channel)
        if error is not None:
            raise error
        return answer


def _start_server() -> None:
    """Start the fork server with Ctrl-C blocked.

    It is blocked in the processes too, from the start: the terminal sends it to all of them, and the first process
    decides."""
    resource_tracker.ensure_running()  # or it is started next, and unblocks what it blocks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(channel: Connection, function: Callable[..., object]) -> None:
    """Answer requests in a worker process until the channel closes."""
    with suppress(EOFError, OSError):
        while True:
            args, kwargs = channel.recv()
            try:
                answer, error = function(*args, **kwargs), None
            except Exception as raised:  # noqa: BLE001 - the caller raises it
                raised.add_note("".join(traceback.format_exception(raised)))
                answer, error = None, raised
            channel.send((answer, error))


# Purifying on several cores: records are read ahead and purified by other processes, in batches, and taken in order.
#
# What is written, counted and refused is what one process would, record by record: so that a run stops, and is gone on
# with, after any record.

_RECORDS, _BYTES = 64, 1 << 20
"""A batch is so many records or bytes: enough to be worth its way, little enough to be held a few times over."""


@dataclass(frozen=True, slots=True)
class Work:
    """Settings of a file for a process: the arguments of its `RecordRepairer`. decided: as in `Detector`, which cannot
    be sent itself."""

    offline: Repairer
    format: str
    decided: int | None
    drop_unrepaired: bool
    name: str
    audit: bool
    pairs: bool
    failures: Mapping[str, str]


class _Done(NamedTuple):
    """Result of one record. data: to write, None where it is left out; same: whether it is unchanged."""

    data: bytes | None
    same: bool
    error: str | None
    audit: list[bytes]
    pairs: list[bytes]
    counts: Count


Pool: TypeAlias = Processes[[Work, list[Record]], list[_Done]]


def pool(jobs: int) -> Pool:
    """Processes to purify with; one pool for all files of a run."""
    return Processes(jobs, _purified)


class RecordsLost(RecordError):
    """A process was killed together with its records."""


class ParallelRepairer:
    """Records of a file, purified ahead by other processes.

    Iterating gives the records; called with the last one it acts as a `RecordRepairer`: it returns what to write, and
    puts audit lines, pairs and counts where they go. The first `skip` records are given and not purified."""

    def __init__(self, pool: Pool, records: Iterator[Record], work: Work, sinks: Sinks, count: Count, *, skip: int):
        self._records = records
        self._work = work
        self._sinks = sinks
        self._skip = skip
        self._done: _Done | None = None
        self._pool = pool
        self.count = count

    def __iter__(self) -> Iterator[Record]:
        for _, record in zip(range(self._skip), self._records, strict=False):
            yield record
        batches = self._batches()
        waiting: deque[tuple[list[Record], RecordError | None, Future[list[_Done]]]] = deque()
        more = True
        while more or waiting:
            while more and len(waiting) < 2 * self._pool.number:
                batch = next(batches, None)
                more = batch is not None and batch[1] is None
                if batch is not None:
                    waiting.append((*batch, self._pool.submit(self._work, batch[0])))
            if not waiting:
                return
            records, broken, future = waiting.popleft()
            try:
                done = future.result()
            except ProcessKilled:
                raise RecordsLost(
                    f"{records[0].where}: a process that purified this record or one of the {len(records)} from there "
                    f"was killed, most often for its memory; fewer --jobs need less"
                ) from None
            for record, self._done in zip(records, done, strict=False):
                yield record
            if broken is not None:
                raise broken

    def __call__(self, record: Record) -> bytes | None:
        """Return what to write for the last record. Raises RecordError as a `RecordRepairer` does."""
        done = self._done
        if done is None:
            raise ValueError(f"{record.where} was not purified")
        self._done = None
        if self._sinks.audit is not None:
            for line in done.audit:
                self._sinks.audit(line)
        if self._sinks.pairs is not None:
            for line in done.pairs:
                self._sinks.pairs(line)
        self.count.take(done.counts)
        if done.error is not None:
            raise RecordError(done.error)
        return record.data if done.same else done.data

    def _batches(self) -> Iterator[tuple[list[Record], RecordError | None]]:
        """Yield batches of records, the last with the file's error."""
        batch: list[Record] = []
        size = 0
        try:
            for record in self._records:
                batch.append(record)
                size += len(record.data)
                if len(batch) == _RECORDS or size >= _BYTES:
                    yield batch, None
                    batch, size = [], 0
        except RecordError as error:
            yield batch, error
            return
        if batch:
            yield batch, None


def _purified(work: Work, records: list[Record]) -> list[_Done]:
    """In another process: each record's outcome."""
    audit: list[bytes] = []
    pairs: list[bytes] = []
    sinks = Sinks(audit.append if work.audit else None, pairs.append if work.pairs else None)
    detector = Detector(work.format, work.decided)
    drop = work.drop_unrepaired
    purifier = RecordRepairer(
        work.offline, detector, sinks, Count(), drop_unrepaired=drop, name=work.name, failures=work.failures
    )
    out: list[_Done] = []
    for record in records:
        purifier.count = Count()
        data, error = None, None
        try:
            data = purifier(record)
        except RecordError as wrong:
            error = str(wrong)
        same = data is record.data
        out.append(_Done(None if same else data, same, error, audit.copy(), pairs.copy(), purifier.count))
        audit.clear()
        pairs.clear()
    return out


class InputChanged(RecordError):
    """Input has changed since an interrupted run read it: going on would lose or repeat records."""


class Checksum:
    """Checksum of records, at a tenth of the cost of a hash."""

    def __init__(self) -> None:
        self._length = self._sum = 0

    def add(self, data: bytes) -> None:
        self._length += len(data)
        self._sum = zlib.crc32(data, self._sum)

    def __str__(self) -> str:
        return f"{self._length}:{self._sum:08x}"


@dataclass(slots=True)
class Progress:
    """Progress of an assignment: `records` of input `file` are done; sizes of the partial files; counts so far. kind:
    the shape of the output of several inputs (see `writer`); written: whether a record stands in the output. before:
    bytes of the inputs before `file`; seen: the checksum of the records that are done."""

    options: dict[str, object]
    file: int = 0
    records: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    counts: list[dict[str, object]] = field(default_factory=list)
    kind: str = ""
    written: bool = False
    before: list[int] = field(default_factory=list)
    seen: str = ""

    def check(self, seen: Checksum, source: Path, kept: Path) -> None:
        """Raise InputChanged where done records have changed; kept: the progress file."""
        if self.seen != str(seen):
            one = "record 1 is" if self.records == 1 else f"records 1 to {self.records} are"
            raise InputChanged(
                f"{source}: {one} not what the interrupted run has read; --resume allows for changes after that "
                f"only. Remove {kept} to start over"
            )


def load(assignment: Assignment) -> Progress:
    """Load an assignment's progress. Raises RecordError without one, or for another's; InputChanged where a file that
    is done has changed."""
    path = assignment.state_path
    try:
        state = msgspec.convert(json.loads(path.read_bytes()), Progress)
    except FileNotFoundError:
        done = next((o.path for o in assignment.outputs() if o.path.exists()), None)
        if done is not None:
            raise RecordError(f"{done} is finished: nothing to resume; --force makes it again") from None
        raise RecordError(f"nothing to resume: there is no {path}; leave out --resume to start") from None
    except (ValueError, msgspec.ValidationError, OSError) as error:
        raise RecordError(f"{path} cannot be read: {error}; remove it to start over") from error
    options = json.loads(json.dumps(assignment.options()))
    # Earlier versions kept None as text.
    other = [name for name, value in options.items() if state.options.get(name) not in (value, str(value))]
    if other:
        raise RecordError(f"{path} is from a run with another {', '.join(other)}; remove it to start over")
    for source, size in zip(assignment.inputs, state.before, strict=False):
        if size_of(source) != size:
            raise InputChanged(
                f"{source} was {size:,} bytes long when the interrupted run read it, and is not now: what became of it "
                f"stands in the output. Remove {path} to start over"
            )
    return state


def size_of(source: Path) -> int:
    """Return an input's size on disk; 0 for a missing one."""
    return source.stat().st_size if source != STDIN and source.exists() else 0


def indented(value: object) -> bytes:
    """Encode a value as indented JSON; lone surrogates become escapes."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=2).encode()


class JobStopped(Exception):
    """Stopped before the end. kept: what can be gone on from, None where nothing can."""

    def __init__(self, message: str, kept: Path | None) -> None:
        super().__init__(message)
        self.kept = kept


class _Stdout:
    def __init__(self) -> None:
        self.out: IO[bytes] = sys.stdout.buffer

    def finish(self) -> int:
        self.out.flush()
        return 0

    def pause(self) -> int:
        return self.finish()

    def commit(self) -> None:
        self.out.flush()

    def leave(self) -> None:
        """Do nothing: what was written is out already."""

    def discard(self) -> None:
        """Do nothing: what was written cannot be taken back."""


_Sink: TypeAlias = PartialFile | _Stdout


class FileJob:
    """Carries out an assignment. bad: what was wrong with records that were skipped, the first of them."""

    def __init__(self, assignment: Assignment, *, resume: bool = False) -> None:
        self.assignment = assignment
        self.bad: list[str] = []
        self.counts: list[Count] = []
        if not resume and assignment.out != STDIN and assignment.state_path.exists():
            raise RecordError(
                f"{assignment.state_path} is from a run that was interrupted: continue with --resume, "
                "or remove it to start over"
            )
        self._writing: Writer | None = None
        self._state = load(assignment) if resume else Progress(assignment.options())
        self._kind = self._state.kind
        self._written = self._state.written
        self._starts = list(accumulate(map(size_of, assignment.inputs), initial=0))
        """Bytes of the inputs before each, and of all."""
        self._seen = Checksum()
        """Of the records of the present input that are done."""
        self._skipped = 0
        self._pool: Pool | None = None
        self._labels = assignment.labels()

    def __call__(self, tell: Callable[[int, int], None], stop: Callable[[], bool]) -> list[Count]:
        """Purify, and return the counts of each input. tell: takes kB done and in all. stop: asked after each record.

        Raises JobStopped, with the progress kept, where `stop` says so or a record is bad; RecordError where the first
        file cannot be read at all (where bad ones are skipped: none of them), or one cannot be written."""
        state = self._state
        self.counts = [Count.from_dict(c) for c in state.counts]
        kept: dict[str, _Sink] = {}
        for name, path in (("audit", self.assignment.audit), ("pairs", self.assignment.pairs)):
            if path is not None:
                kept[name] = PartialFile(path, state.sizes.get(name) if state.sizes else None)
        self._pool = pool(self.assignment.jobs) if self.assignment.jobs > 1 else None
        try:
            for index in range(state.file, len(self.assignment.inputs)):
                self._one(index, kept, tell, stop)
            if self._skipped == len(self.assignment.inputs):
                raise RecordError("\n".join(["none of the files can be read", *self.bad]))
            for sink in kept.values():
                sink.finish()
            for _, sink in sorted(kept.items(), key=lambda item: item[0] == "out"):
                sink.commit()
        except (RetconError, OSError):
            for sink in kept.values():
                if state.sizes:  # what an earlier run has done stays
                    sink.leave()
                else:
                    sink.discard()
            raise
        finally:
            if self._pool is not None:
                self._pool.close()
            if self._writing is not None:
                self._writing.drop()
        self._forget()
        return self.counts

    def _one(
        self, index: int, kept: dict[str, _Sink], tell: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> None:
        """Purify one input."""
        assignment = self.assignment
        first = self._opened(index, kept)
        if first is not None:
            try:
                self._records(index, first, kept, tell, stop)
            finally:
                first.source.close()
        if self._writing is None or not (assignment.into_folder or index + 1 == len(assignment.inputs)):
            return
        try:
            if self._nothing_left(index):
                kept["out"].out.write(b"[]\n")
            self._writing.end()
        except RecordError as error:
            raise self._stopped(str(error), index, 0, None if first is None else first.source, kept) from error
        except BrokenPipeError:
            raise  # the reader of standard output, such as `head`, has ended
        except OSError as error:
            raise self._unwritable(error) from error
        if assignment.into_folder:
            self._writing, self._written = None, False
            kept["out"].commit()
            del kept["out"]

    def _forget(self) -> None:
        """Delete what an interrupted run wrote down."""
        if self.assignment.out != STDIN:
            self.assignment.state_path.unlink(missing_ok=True)

    def _nothing_left(self, index: int) -> bool:
        """Whether a JSON output would be empty: every record was dropped."""
        assignment = self.assignment
        name = assignment.names[index] if assignment.into_folder else assignment.out.name
        counts = [self.counts[index]] if assignment.into_folder else self.counts
        left_out = any(count.bad or count.dropped for count in counts)
        lines = isinstance(self._writing, LinesWriter | DocumentWriter)
        return left_out and lines and not self._written and plain_name(name).endswith(DOCUMENTS)

    def _opened(self, index: int, kept: dict[str, _Sink]) -> FormatSample | None:
        """Take the first look at an input."""
        wanted = self.assignment
        try:
            return sample_records(open_source(wanted.inputs[index]), wanted.format, skip_bad=wanted.skip_bad)
        except (RecordError, MissingExtra) as error:
            if wanted.skip_bad and len(wanted.inputs) > 1:
                if len(self.counts) == index:
                    self.counts.append(Count())
                self._skip(str(error), self.counts[index], 1)
                self._skipped += 1
                return None
            if index == self._state.file:
                raise  # nothing was done yet, or nothing more than is written down already
            raise self._stopped(str(error), index, 0, None, kept) from error

    def _records(
        self, index: int, first: FormatSample, kept: dict[str, _Sink],
        tell: Callable[[int, int], None], stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Write all records of an input into the open files."""
        assignment, state = self.assignment, self._state
        source = first.source
        going_on = index == state.file and state.records > 0
        skip = state.records if index == state.file else 0
        if "out" not in kept:
            size = state.sizes.get("out") if index == state.file and state.sizes else None
            kept["out"] = self._open(index, size if going_on or not assignment.into_folder else None)
        kind = _kind(source, assignment, index)
        if self._writing is None:
            joined = _joined(assignment)
            if joined:  # in the shape of the first of them, whatever the others are
                kind = self._kind = self._kind or kind or (".json" if source.shape == "array" else ".jsonl")
            self._writing = writer(source, kept["out"].out, kind=kind, going_on=self._written, joined=joined)
            if not self._written:
                self._writing.begin()
        write = self._writing
        if len(self.counts) == index:
            self.counts.append(Count())
        purifier, records = self._purifier(index, first, kept, skip)
        done, seen = 0, Checksum()
        self._seen = seen
        try:
            for number, record in enumerate(self._readable(records, purifier.count), 1):
                if number <= skip:
                    done = number
                    seen.add(record.data)
                    if number == skip:
                        state.check(seen, source.path, assignment.state_path)
                    continue
                try:
                    if (data := purifier(record)) is not None:
                        write.add(record, data)
                        self._written = True
                except ColumnsError:
                    raise
                except RecordError as error:
                    if not assignment.skip_bad:
                        why = f"{error}{first.detector.others(record.number)}"
                        raise self._stopped(why, index, done, source, kept) from error
                    self._skip(str(error), purifier.count, record.number)
                done = number
                seen.add(record.data)
                if number % 64 == 0:
                    tell(*self._kilobytes(index, source.read()))
                if stop():
                    raise self._stopped("interrupted", index, number, source, kept)
            if done < skip:
                state.check(seen, source.path, assignment.state_path)
        except RecordError as error:
            if isinstance(error, InputChanged) or done < skip:
                raise  # what an earlier run has done stays as it is
            # SIGTERM to a whole group ends the processes first
            cause = None if isinstance(error, RecordsLost) and stop() else error
            raise self._stopped(str(error), index, done, source, kept) from cause
        except BrokenPipeError:
            raise  # the reader of standard output, such as `head`, has ended
        except OSError as error:
            raise self._unwritable(error) from error
        tell(*self._kilobytes(index, source.read()))

    def _unwritable(self, error: OSError) -> RecordError:
        """Build the error for an output that cannot be written."""
        if not isinstance(error, WriteFailed) and self.assignment.out == STDIN:
            return RecordError(f"standard output cannot be written: {error}")
        return write_error(Path(error.filename) if isinstance(error, WriteFailed) else self.assignment.out, error)

    def _kilobytes(self, index: int, read: int) -> tuple[int, int]:
        """Return how many kB of the inputs were read, of how many; read: bytes of input `index` on disk."""
        done = self._starts[index] + read
        return -(-done // 1000), -(-max(self._starts[-1], done) // 1000)

    def _readable(self, records: Iterable[Record], count: Count) -> Iterator[Record]:
        """Yield a source's records up to a read error.

        It ends without an error where bad ones are skipped, or a session is still being written."""
        number = 0
        try:
            for record in records:
                number = record.number
                yield record
        except RecordsLost:
            raise  # nothing is wrong with the file
        except TornLine as torn:
            self._skip(str(torn), count, torn.number)
        except RecordError as error:
            if not self.assignment.skip_bad:
                raise
            self._skip(f"{error}; the rest of this file is left out", count, number + 1)

    def _skip(self, why: str, count: Count, number: int) -> None:
        """Count a record, or a file's rest, as unreadable."""
        count.bad += 1
        if len(count.bad_at) < SHOWN:
            count.bad_at.append(number)
        if len(self.bad) < SHOWN:
            self.bad.append(why)

    def _purifier(
        self, index: int, first: FormatSample, kept: Mapping[str, _Sink], skip: int
    ) -> tuple[RecordRepairer | ParallelRepairer, Iterable[Record]]:
        """Return what purifies a source's records, and these."""
        (source, detector, values), wanted = first, self.assignment
        count, drop, name = self.counts[index], wanted.drop_unrepaired, self._labels[index]
        sinks = Sinks(*(kept[n].out.write if n in kept else None for n in ("audit", "pairs")))
        if self._pool is None:
            purifier = RecordRepairer(
                wanted.offline, detector, sinks, count, drop_unrepaired=drop, values=values, name=name,
                failures=wanted.failures,
            )  # fmt: skip
            return purifier, source.records
        values.clear()  # each process decodes its own
        work = Work(wanted.offline, wanted.format, detector.decided, drop, name,
                    audit="audit" in kept, pairs="pairs" in kept, failures=wanted.failures)  # fmt: skip
        ahead = ParallelRepairer(self._pool, source.records, work, sinks, count, skip=skip)
        return ahead, ahead

    def _open(self, index: int, size: int | None) -> _Sink:
        assignment = self.assignment
        if assignment.out == STDIN:
            return _Stdout()
        return PartialFile(assignment.out / assignment.names[index] if assignment.into_folder else assignment.out, size)

    def _stopped(self, why: str, index: int, records: int, source: Source | None, kept: dict[str, _Sink]) -> JobStopped:
        """Close everything and write down how far it is. Shapes that are written in one go are begun anew, and part of
        one is of no use."""
        if (source is not None and source.shape in WHOLE) or isinstance(self._writing, ParquetWriter):
            for sink in kept.values():
                sink.discard()
            self._forget()
            return JobStopped(why, None)
        sizes = {name: sink.pause() for name, sink in kept.items()}
        if self.assignment.out == STDIN or STDIN in self.assignment.inputs:
            return JobStopped(why, None)
        counts = [c.to_dict() for c in self.counts]
        before = [after - start for start, after in zip(self._starts[:index], self._starts[1:], strict=False)]
        state = Progress(
            self.assignment.options(), index, records, sizes, counts, self._kind, self._written, before,
            str(self._seen) if records else "",
        )  # fmt: skip
        write_whole(self.assignment.state_path, indented(asdict(state)))
        return JobStopped(why, self.assignment.state_path)


def _joined(assignment: Assignment) -> bool:
    """Whether several inputs become one output."""
    return len(assignment.inputs) > 1 and not assignment.into_folder


def _kind(source: Source, assignment: Assignment, index: int) -> str:
    """Return the shape to write a source in (see `writer`): its own, unless the name of the output asks for lines or
    for Parquet. Raises RecordError where the output cannot hold it."""
    joined = _joined(assignment)
    full_name = assignment.names[index] if assignment.into_folder else assignment.out.name
    name = plain_name(full_name)
    kind = ".jsonl" if name.endswith(LINES) else ".parquet" if name.endswith(".parquet") else ""
    if name.endswith(".eval") and source.shape != "eval":
        raise RecordError(f"{full_name}: an .eval can only hold what came from one .eval; name a .jsonl")
    if source.shape == "session":
        if joined or kind == ".parquet":
            raise RecordError(f"{source.path}: a session keeps its lines to itself; give a folder with -o FOLDER/")
    elif source.shape in ("log", "eval") and not kind:
        if joined:
            raise RecordError(f"{source.path}: a log cannot be joined with other files; give a folder with -o FOLDER/")
        if source.shape == "eval" and not full_name.endswith(".eval"):
            goes_to = "standard output" if assignment.out == STDIN else full_name
            raise RecordError(f"{source.path}: an .eval log cannot go to {goes_to}; name an .eval or a .jsonl")
    elif name.endswith(".pt") and (joined or source.shape != "dump" or full_name != name):
        raise RecordError(
            f"{full_name}: a .pt can only hold what came from one .pt, and is never compressed; name a .jsonl"
        )
    elif kind == ".parquet" and full_name != name:
        raise RecordError(f"{full_name}: a .parquet is compressed within, and never as a whole; name a .parquet")
    elif not kind and (
        source.shape == "parquet"
        or (source.shape == "dump" and not name.endswith(".pt"))
        or (source.shape == "document" and joined)
    ):
        kind = ".jsonl"
    return kind


def write_report(path: Path, run: FileJob) -> None:
    """Write all counts as JSON: `files`, each with its name, and `total`; `options` has their settings, except the
    number of processes."""
    files = [{"file": str(p)} | c.to_dict() for p, c in zip(run.assignment.inputs, run.counts, strict=True)]
    whole = total(run.counts).to_dict()
    del whole["examples"]
    options = {**run.assignment.options(), "skip_bad": run.assignment.skip_bad}
    body = {"version": 1, "options": options, "total": whole, "files": files}
    out = PartialFile(path)
    try:
        out.out.write(indented(body) + b"\n")
        out.commit()
    finally:
        out.discard()
