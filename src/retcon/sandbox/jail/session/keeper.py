"""Keeper of a session in a worker: interpreter, frozen copies, snapshots of files.

A session's worker serves nothing else until the session is closed. Between operations every process of the session is
stopped: threads and processes that a cell left running continue with the next cell, in whose clocks and output they
count, and an idle session takes no CPU time. Standard library only.

Reports from inside decide only the status of their own cell. Which processes exist, which of them is the interpreter
and which a frozen copy, whether they are stopped or have ended, and their memory: the keeper asks the kernel. Files are
restored when every process of the session has ended except the stopped copies, with the rights of the session's user,
and without following links (`BeneathOpener`).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Collection

from retcon.sandbox.jail import child
from retcon.sandbox.jail import messages as wire
from retcon.sandbox.jail.capture import cut_middle
from retcon.sandbox.jail.messages import (
    CHECKPOINTS,
    TOO_MANY,
    Bounds,
    CloseSession,
    Discard,
    HostReturn,
    MakeCheckpoint,
    Message,
    OpenSession,
    Outcome,
    RollBack,
    RunCall,
    SessionReply,
)
from retcon.sandbox.jail.session import processes
from retcon.sandbox.jail.session.control import (
    Control,
    Deadlines,
    HostGone,
    InterpreterReply,
    Output,
    check_not_starved,
    exchange,
)
from retcon.sandbox.jail.session.functions import HostChannel
from retcon.sandbox.jail.session.interpreter import (
    FAILED,
    OBSTACLES,
    CellCommand,
    FreezeCommand,
    cell_command,
    serve_cells,
)
from retcon.sandbox.jail.session.processes import (
    CheckpointImpossible,
    Child,
    Copy,
    InterpreterGone,
    Tree,
    checkpoint_bytes,
    cpu_times_of_stopped,
    find_new_copy,
)
from retcon.sandbox.jail.session.snapshot import FilesNotRestored, Snapshot, WritableFolders
from retcon.sandbox.jail.usage import resident
from retcon.sandbox.jail.watchdog import Watchdog, append_lines, cell_verdict, verdict

FREEZE_SECONDS = 10.0  # for a copy to be made, or a cell to be taken
FOREVER = 10**9  # seconds of CPU: the keeper watches each cell's
FREEZE_SHARES = 3  # of a session's memory, while a copy is made: the interpreter's, a process between, the copy's
ENDED = "The interpreter has ended: its variables are gone."


class Keeper:
    """Server of one session, until it or the worker's channel is closed.

    asked: its limits of memory, files and processes bound those of the cells. baseline: resident bytes that the
    interpreter is forked with.
    """

    def __init__(
        self, channel: socket.socket, setting: child.Setting, nothing: int, asked: OpenSession, baseline: int
    ) -> None:
        self._channel = channel
        self._setting = setting
        self._limits = asked.limits
        self._proc = setting.confinement.proc
        self._tree = Tree(self._proc, reaches=setting.confinement.kill_reaches)
        self._copies: dict[str, Copy] = {}
        self._cause = ""
        self._baseline = baseline
        self._first = 0  # number of the first interpreter, once it has ended and stays unreaped
        self._exiting: Child | None = None
        self._at_rest = False  # all processes are stopped
        self._left: list[int] = []  # stopped processes, without copies
        self._pending_refreeze: tuple[str, list[Snapshot]] | None = None  # checkpoint without a copy; its files
        self._fault = ""  # a machine's fault for the next reply
        self._writable = WritableFolders(setting.confinement, setting.scratch)
        self._control = Control()
        self._host = HostChannel() if asked.functions else None
        self._output = Output()
        self._watchdog = Watchdog(setting.confinement, asked.limits, baseline)  # of the last operation
        ceiling = asked.limits._replace(cpu_seconds=FOREVER, processes=asked.limits.processes + CHECKPOINTS + 2)
        keeper, (reads, writes) = os.getpid(), os.pipe()
        pid = os.fork()
        if pid == 0:
            streams: child.Streams = (nothing, *self._output.writes, self._control.theirs.fileno())
            if self._host is not None:
                streams += (self._host.theirs.fileno(),)
            serve_cells(streams, setting, asked._replace(limits=ceiling), keeper, writes)
        os.close(writes)
        self._interpreter: Child | None = Child(pid, self._tree.number(pid))
        with open(reads, errors="replace") as setup:  # closed before any cell runs
            if problem := setup.read():
                self._fault = f"the interpreter could not be started: {problem}"

    def serve(self) -> bool:
        """Serve requests; return whether the session was closed and all its processes ended."""
        wire.send(self._channel, SessionReply(self._memory()))
        while (asked := wire.receive(self._channel)) is not None:
            if isinstance(asked, HostReturn):  # for a call whose cell has ended
                continue
            if isinstance(asked, CloseSession):
                return self._tree.end(())
            wire.send(self._channel, self._handle(asked)._replace(memory=self._memory()))
            self._refreeze_after_rollback()
            self._stop_after_operation()
        self._tree.end(())
        return False

    def _handle(self, asked: Message) -> SessionReply:
        """Do a request; return the reply, without the memory."""
        try:
            if self._fault:
                raise OSError(self._fault)
            match asked:
                case RunCall():
                    outcome = self._cell(asked)
                    if asked.fetch:
                        outcome = outcome._replace(files=self._writable.collect(asked.fetch))
                    return SessionReply(0, outcome, lost=self._cause, fault=outcome.status == "infrastructure")
                case MakeCheckpoint():
                    self._checkpoint(asked.name)
                case RollBack():
                    self._rollback(asked.name)
                case Discard():
                    self._discard(asked.name)
                case _:
                    raise ValueError(f"not a session's request: {type(asked).__name__}")
        except CheckpointImpossible as refused:
            return SessionReply(0, refused=str(refused), full=refused.full)
        except InterpreterGone as gone:
            return SessionReply(0, lost=str(gone))
        except OSError as error:  # no process, pipe or folder could be made: the machine's fault
            return SessionReply(0, lost=f"sandbox worker: {error}", fault=True)
        return SessionReply(0)

    def _stop_after_operation(self) -> None:
        """After an operation stop all processes; end them if they hold too much memory."""
        self._collect_exiting()
        if self._at_rest:
            return
        try:
            left = self._settle()
            size = sum(max(0, resident(self._proc, number) - self._baseline) for number in left)
        except OSError:
            self._end_all("its processes would not stop")
            return
        if len(left) > 1 and size > self._limits.memory_mb << 20:
            self._end_all(f"its processes held more than {self._limits.memory_mb} MiB together")

    def _settle(self) -> list[int]:
        """Stop all processes; return those that are not copies. Unfit copies are ended.

        Raises OSError if some would not stop.
        """
        deadline = time.monotonic() + processes.SWEEP_SECONDS
        while True:
            self._tree.stop()
            before = cpu_times_of_stopped(self._copies)
            self._left = self._tree.settle(self._frozen_numbers())
            # copies must not run meanwhile
            if None not in before.values() and before == cpu_times_of_stopped(self._copies):
                unfit = [copy for copy in self._copies.values() if not (copy.is_over or copy.is_fit(self._tree))]
                self._at_rest = not unfit
                if not unfit:
                    return self._left
                for copy in unfit:
                    copy.signal(signal.SIGKILL)
            elif time.monotonic() > deadline:
                for copy in self._copies.values():
                    copy.signal(0 if copy.is_stopped else signal.SIGKILL)
                raise OSError("processes of a session would not stop")
            time.sleep(processes.PAUSE)

    def _end_all(self, cause: str) -> None:
        """End the interpreter and its processes; copies stay."""
        if self._interpreter is not None:
            self._cause = cause
            self._interpreter.signal(signal.SIGKILL)
            self._reap_interpreter(self._interpreter)
        else:
            self._tree.end(self._frozen_numbers())

    @property
    def _running(self) -> Child:
        """The interpreter. Raises InterpreterGone."""
        if self._interpreter is None:
            raise InterpreterGone(self._cause)
        return self._interpreter

    def _cell(self, cell: RunCall) -> Outcome:
        limits, started = cell.limits, time.monotonic()
        interpreter = self._running
        self._output.keep(limits.output_bytes)
        command = cell_command(cell, self._setting, CHECKPOINTS + 2)
        deadlines = self._deadlines(limits.cpu_seconds, limits.wall_seconds, limits)
        reply = self._ask(command, self._left, deadlines, self._host)
        early = None if reply.early is None else reply.early[: child.NAME_CHARS]
        if reply.done is not None:
            late, _, value = reply.done[1:].partition("\0")
            raised = early or late[: child.NAME_CHARS] or None
            status, error_type, line = cell_verdict(raised, deadlines.over)
            peak, code = processes.peak(self._proc, interpreter.number), None
        else:
            value, raised = "", early
            end, peak = self._reap_interpreter(interpreter)
            status, error_type, code, line = verdict(end, 0.0, None, None, early, machine=deadlines.starved(end))
            if deadlines.over:
                status, error_type, line = cell_verdict(None, deadlines.over)
            is_fault = status == "infrastructure"
            self._cause = line if is_fault else f"its code ended the interpreter ({line or f'exit code {code}'})"
        stdout, stderr = self._output.take()
        return Outcome(
            status=status,
            error_type=error_type,
            stdout=stdout,
            stderr=append_lines(stderr, [self._cause and ENDED, line], raised),
            value=cut_middle(value[1:], limits.output_bytes) if value else None,
            exit_code=code,
            seconds=time.monotonic() - started - deadlines.paused,
            peak_memory=peak,
            tier=self._setting.confinement.tier,
        )

    def _checkpoint(self, name: str) -> None:
        if len(self._copies) >= CHECKPOINTS:
            raise CheckpointImpossible(TOO_MANY, full=True)
        room = 2 * self._limits.memory_mb
        if checkpoint_bytes(self._copies.values()) > room << 20:
            message = f"the checkpoints of this session hold more than {room} MiB: discard some"
            raise CheckpointImpossible(message, full=True)
        self._copies[name] = self._freeze(None)

    def _rollback(self, name: str) -> None:
        copy = self._copies.get(name)
        if copy is None:  # see `_refreeze_after_rollback`
            raise InterpreterGone(f"{name} was rolled back to, and could not be copied again")
        self._end_interpreter()
        if self._exiting is None:  # else it was the only process
            if not self._tree.end(self._frozen_numbers()):
                raise OSError("processes of a session would not end")
            with contextlib.suppress(OSError):  # a copy that was woken and would not stop is ended
                self._settle()
        del self._copies[name]
        if copy.is_over:
            copy.end()
            raise InterpreterGone(f"the frozen copy of {name} was ended")
        try:
            self._restore_files(copy)
        except FilesNotRestored as spoiled:
            copy.end()
            raise InterpreterGone(f"the files of {name} could not be restored: {spoiled}") from spoiled
        self._output.take()
        self._control.forget()
        if self._host is not None:
            self._host.forget()
        self._interpreter, self._cause = copy, ""
        self._pending_refreeze = name, copy.folders

    def _refreeze_after_rollback(self) -> None:
        """After the reply to a rollback, have its interpreter copy itself again. The next reply reports failures."""
        if self._pending_refreeze is None:
            return
        (name, folders), self._pending_refreeze = self._pending_refreeze, None
        self._at_rest, self._left = False, []
        self._running.signal(signal.SIGSTOP)  # discards a cell's pending SIGCONT
        self._running.signal(signal.SIGCONT)  # keeps its sender on a full queue, unlike a real-time signal
        try:
            with contextlib.suppress(InterpreterGone):  # `_cause` keeps the reason
                self._copies[name] = self._freeze(folders)
        except CheckpointImpossible as refused:
            self._end_all(f"{name} could not be kept: {refused}")
        except OSError as error:
            self._fault = str(error)

    def _end_interpreter(self) -> None:
        """Kill the interpreter. If it is the only process, and stopped, it runs no more code: the rollback need not
        wait until its memory is freed."""
        ending = self._interpreter
        if ending is None:
            return
        alone = self._at_rest and self._left == [ending.number] and ending.is_stopped
        ending.signal(signal.SIGKILL)
        if alone:
            self._interpreter, self._exiting = None, ending
        else:
            self._reap_interpreter(ending)

    def _collect_exiting(self) -> None:
        if self._exiting is not None:
            self._collect(self._exiting)
            self._exiting = None

    def _restore_files(self, copy: Copy) -> None:
        """Restore a copy's files. Raises as `WritableFolders.restore`."""
        try:
            self._writable.restore(copy.folders)
        except (FilesNotRestored, OSError):  # the dying interpreter may still hold space
            if self._exiting is None:
                raise
            self._collect_exiting()
            self._writable.restore(copy.folders)

    def _discard(self, name: str) -> None:
        copy = self._copies.pop(name, None)
        if copy is not None:
            copy.end()

    def _freeze(self, folders: list[Snapshot] | None) -> Copy:
        """Make a frozen copy. folders: snapshots of the writable folders, None to take them.

        Only the interpreter may exist, with one thread: then it made any new process, and a copy has the whole state.
        Raises CheckpointImpossible, InterpreterGone if it ended meanwhile.
        """
        interpreter = self._running
        if not {interpreter.number}.issuperset(self._left):
            raise CheckpointImpossible("processes that its code started have not ended, or were not waited for")
        if len(self._tree.threads(interpreter.number)) > 1:
            raise CheckpointImpossible("threads that its code started are running")
        known = self._tree.children()
        command: FreezeCommand = {"op": "freeze"}
        limits = self._limits._replace(memory_mb=FREEZE_SHARES * self._limits.memory_mb)
        deadlines = self._deadlines(math.inf, FREEZE_SECONDS, limits)
        reply = self._ask(command, self._left, deadlines)
        if not deadlines.over:
            check_not_starved(interpreter, self._watchdog)
        if reply.done is not None and reply.done.startswith(FAILED):
            raise CheckpointImpossible(OBSTACLES.get(reply.done[1:], OBSTACLES["other"]))
        try:
            if reply.done is None:
                raise OSError("the interpreter has ended")
            self._settle()
            number = find_new_copy(self._tree, known)
            self._left.remove(number)
            copy = Copy(self._tree.pid(number), number, max(0, resident(self._proc, number) - self._baseline))
            if copy.is_over:
                copy.end()
                raise OSError("the copy has ended")
        except OSError as error:
            self._end_all("its code kept the interpreter from being copied")
            raise InterpreterGone(self._cause) from error
        try:
            before = next(reversed(self._copies.values())).folders if self._copies else None
            copy.folders = folders or self._writable.take(before)
        except OSError as error:
            copy.end()
            raise CheckpointImpossible(f"no checkpoint: {error}") from error
        return copy

    def _deadlines(self, cpu: float, wall: float, limits: Bounds) -> Deadlines:
        check_not_starved(self._running, self._watchdog)  # while it rested
        self._setting.confinement.kills.note()
        self._watchdog = Watchdog(self._setting.confinement, limits, self._baseline, frozenset(self._frozen_numbers()))
        copies = self._copies.values()
        return Deadlines(self._running.pid, self._tree, copies, cpu_limit=cpu, wall_limit=wall, watchdog=self._watchdog)

    def _ask(
        self,
        command: CellCommand | FreezeCommand,
        wake: Collection[int],
        deadlines: Deadlines,
        functions: HostChannel | None = None,
    ) -> InterpreterReply:
        """Send a command; return the interpreter's reply. wake: stopped processes to continue meanwhile.

        All have been sent the stop signal when it returns. Raises InterpreterGone without an interpreter.
        """
        interpreter = self._running
        self._at_rest = False
        for number in wake:
            self._tree.signal(number, signal.SIGCONT)
        try:
            exchange(
                command,
                interpreter=interpreter,
                control=self._control,
                output=self._output,
                host=self._channel,
                deadlines=deadlines,
                functions=functions,
            )
        except HostGone:
            self._tree.end(())
            os._exit(0)
        self._tree.stop()
        self._reap()
        return self._control.reply

    def _reap(self) -> None:
        """Reap ended children, except interpreter and copies."""
        for number in set(self._tree.children()) - self._frozen_numbers() - {self._running.number}:
            self._tree.reap(number)

    def _reap_interpreter(self, interpreter: Child) -> tuple[int, int]:
        """Collect an ended or killed interpreter, and end its processes; see `_collect`."""
        self._interpreter, found = None, self._collect(interpreter)
        self._tree.end(self._frozen_numbers())
        return found

    def _collect(self, interpreter: Child) -> tuple[int, int]:
        """Wait for its end; return (wait status, peak resident bytes).

        If the filter lets a session signal its first process only, that one is not reaped while the session lives, so
        that no other process gets its id.
        """
        if self._setting.confinement.only_own_signals and not self._first:
            self._first = interpreter.number
            return interpreter.await_end()
        return interpreter.collect()

    def _frozen_numbers(self) -> set[int]:
        """Return the numbers of children that no cell runs."""
        ended = {self._first, self._exiting.number if self._exiting else 0} - {0}
        return {copy.number for copy in self._copies.values()} | ended

    def _memory(self) -> int:
        """Return the most bytes that this session takes, without memory shared with others."""
        own = sum(
            max(0, resident(self._proc, number) - self._baseline) for number in self._tree.below(self._frozen_numbers())
        )
        return own + checkpoint_bytes(self._copies.values())
