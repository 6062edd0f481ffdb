"""Commands of Retcon, each a process of its own, forked from one that has imported what commands import.

A program in the place of Python, `python -m MODULE …`, hands its call to that process and is what it says: it ends as
the call does, hands signals on, and its call ends with it. As a script this file is the process that is forked.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path

SRC = str(Path(__file__).resolve().parents[1] / "src")
SETTINGS = {"PYTHONPATH": SRC, "COLUMNS": "200", "NO_COLOR": "1"}
"""A wide terminal that is none."""
WITH_JOBS = ("quickstart", "compare", "reproduce")
IMPORTED = (
    "retcon.cli.app", "retcon.cli.experiments", "retcon.cli.eval", "retcon.cli.learn", "retcon.cli.show",
    "retcon.cli.transcripts", "retcon.cli.ask", "retcon.cli.serve_agent", "retcon.cli.sandbox", "retcon.cli.data",
    "retcon.cli.recipes", "retcon.cli.doctor", "retcon.cli.compare", "retcon.cli.quickstart", "retcon.cli.reproduce",
    "retcon.evaluate.runner", "retcon.train.stages", "retcon.train.rl", "retcon.train.sft", "retcon.train.dpo",
    "retcon.engine.local.engine", "transformers",
)  # fmt: skip
PROGRAM = """#!{python} -IS
import os, sys
words = sys.argv[1:]
if words[:1] != ["-m"]:
    os.execv({python!r}, [{python!r}, *words])
import json, signal, socket
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
call = json.dumps([words[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
server.sendall(call)
code = int(server.recv(9) or b"-9")
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def python() -> str:
    """The path of that program, whose server ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="retcon-commands-"))
    program, address = folder / "python", str(folder / "socket")
    program.write_text(PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    words = [sys.executable, __file__, address, str(program)]
    settings = os.environ | {"PYTHONPATH": os.pathsep.join([SRC, *sys.path]), "OMP_WAIT_POLICY": "PASSIVE"}
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    @atexit.register
    def end() -> None:
        server.communicate()
        for file in (*folder.iterdir(), folder):
            file.rmdir() if file is folder else file.unlink()

    return str(program)


class Command:
    """A call that has been started."""

    def __init__(self, words: tuple[object, ...], stdin: str, cwd: Path | str, environment: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        given, self.stdout, self.stderr = (Path(self._folder.name, name) for name in ("0", "1", "2"))
        given.write_text(stdin)
        with given.open() as file, self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self._process = subprocess.Popen(
                [python(), "-m", "retcon", *map(str, words)], stdin=file, stdout=out, stderr=err, cwd=cwd,
                env=os.environ | SETTINGS | environment,
            )  # fmt: skip
        self.send_signal = self._process.send_signal

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def first_line(self) -> str:
        """Of its standard output, once it is there or the command has ended."""
        while "\n" not in self.stdout.read_text() and self.running:
            time.sleep(0.01)
        return self.stdout.read_text().partition("\n")[0]

    def finish(self) -> subprocess.CompletedProcess[str]:
        code = self._process.wait()
        said = [file.read_bytes().decode(errors="replace") for file in (self.stdout, self.stderr)]
        return subprocess.CompletedProcess(self._process.args, code, *said)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


@contextmanager
def started(*words: object, stdin: str = "", cwd: Path | str = ".", **environment: str) -> Iterator[Command]:
    command = Command(words, stdin, cwd, environment)
    try:
        yield command
    finally:
        command.close()


def retcon(
    *words: object, stdin: str = "", cwd: Path | str = ".", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A call and what came of it."""
    with started(*words, stdin=stdin, cwd=cwd, **environment) as command:
        return command.finish()


def _serve(address: str, program: str) -> None:
    """Forks a process for each call, until standard input ends."""
    for name in IMPORTED:
        import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    calls: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, ended, *calls.values()], [], [])
        if 0 in ready:
            break
        if listener in ready:
            call, _ = listener.accept()
            calls[_fork(call, program)] = call
        for pid, call in [(pid, call) for pid, call in calls.items() if call in ready]:
            for number in (numbers := call.recv(64)) or [signal.SIGKILL]:
                with suppress(ProcessLookupError):
                    os.killpg(pid, number)
            if not numbers:
                calls.pop(pid).close()
        if ended in ready:
            os.read(ended, 1 << 16)
            with suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    if (call := calls.pop(found[0], None)) is not None:
                        with suppress(OSError):
                            call.sendall(str(os.waitstatus_to_exitcode(found[1])).encode())
                        call.close()
    for pid in calls:
        os.killpg(pid, signal.SIGKILL)


def _fork(call: socket.socket, program: str) -> int:
    size, files, *_ = socket.recv_fds(call, 4, 3)
    asked = b""
    while len(asked) < int.from_bytes(size, "big"):
        asked += call.recv(1 << 20)
    words, folder, environment = json.loads(asked)
    if (pid := os.fork()) == 0:
        _run(words, folder, environment, files, program)
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)
    for file in files:
        os.close(file)
    return pid


def _run(words: list[str], folder: str, environment: dict[str, str], files: list[int], program: str) -> None:
    """As Python runs a module; does not return."""
    code: object = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 1024)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = words
        if words[1:2] and words[1] in WITH_JOBS:
            sys.executable = program
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:  # noqa: BLE001  as an interpreter says it
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
