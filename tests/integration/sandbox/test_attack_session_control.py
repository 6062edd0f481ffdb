"""A session's code against the channel between its interpreter and the keeper, and against the keeper itself."""

from __future__ import annotations

import pytest
from test_attack_session_copies import EAT, FORGE

from jail import ALL, NAMESPACES, Attacked, Jail, contained_by
from retcon.core.errors import SessionLost
from retcon.sandbox.types import Limits


@pytest.fixture
def session(jail: Jail) -> Attacked:
    return jail.session()


@contained_by(*ALL)
@pytest.mark.parametrize("mark", ["!", "=", "-"])
def test_no_name_of_an_exception_is_taken_for_another_word(session: Attacked, mark: str) -> None:
    raised = session.run(f"raise type({mark + 'x'!r}, (Exception,), {{}})('why')")
    assert (raised.status, raised.error_type) == ("error", mark + "x")
    assert raised.stderr.endswith(f"{mark}x: why\n")
    assert session.run("1").value == "1"
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("how", ["os.close(3)", "it._control.shutdown(2)", "os.dup2(os.pipe()[0], 3)"])
def test_a_channel_that_is_closed_ends_the_session_and_says_so(session: Attacked, how: str) -> None:
    cut = session.run(FORGE + how)
    assert cut.exit_code is not None
    with pytest.raises(SessionLost, match="its code ended the interpreter") as lost:
        session.run("1")
    assert lost.value.by_own_code
    session.close()


@contained_by(*ALL)
def test_a_command_that_is_not_read_does_not_stop_the_clocks(session: Attacked) -> None:
    """The cell says that it has ended, and goes on: the next one is longer than a socket's buffer."""
    state = session.checkpoint()
    # its main thread is still in the first cell when the second is sent, and obeys no interrupt
    session.run(
        FORGE + "token = sys._getframe()\nwhile 'command' not in token.f_locals: token = token.f_back\n"
        "token = token.f_locals['command']['token']\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "it._send_report(token, '=\\0')\nwhile True: pass"
    )
    late = session.run("'" + "x" * (3 << 20) + "'", limits=Limits(memory_mb=128, cpu_seconds=1, wall_seconds=1))
    assert (late.status, late.error_type) == ("timeout", "TimeoutError")
    session.rests()
    session.rollback(state)
    assert session.run("1").value == "1"
    session.close()


@contained_by(*ALL)
def test_memory_is_watched_while_a_command_is_not_read(session: Attacked) -> None:
    state = session.checkpoint()
    session.run(
        FORGE + EAT + "frame = sys._getframe()\nwhile 'command' not in frame.f_locals: frame = frame.f_back\n"
        "it._send_report(frame.f_locals['command']['token'], '=\\0')\n"
        "for _ in range(6):\n    if os.fork() == 0:\n        x = eat(80)\n        while True: time.sleep(60)\n"
        "while True: time.sleep(60)"
    )
    full = session.run("'" + "x" * (3 << 20) + "'")
    assert full.status in ("limit", "timeout", "error"), full
    session.rests()
    assert session.memory() < (128 + 2 * 40) << 20
    session.rollback(state)
    assert session.run("1").value == "1"
    session.close()


@contained_by(*ALL)
def test_a_cell_cannot_say_that_the_sandbox_was_at_fault(session: Attacked) -> None:
    for word in ("-", "-infrastructure", "=infrastructure\\0", "!infrastructure", "!", "=" + "n" * 5000 + "\\0"):
        said = session.run(
            FORGE + "frame = sys._getframe()\nwhile 'command' not in frame.f_locals: frame = frame.f_back\n"
            f"it._send_report(frame.f_locals['command']['token'], '{word}')"
        )
        assert said.status in ("ok", "error")
        assert len(said.error_type or "") <= 200
        session.rests()
    session.close()


@contained_by(*ALL)
def test_no_signal_stops_or_ends_the_keeper(session: Attacked) -> None:
    session.run(
        """
        import os, signal
        for pid in (os.getppid(), 1):
            for sent in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGCHLD, signal.SIGXCPU, signal.SIGCONT):
                try: os.kill(pid, sent)
                except OSError: pass
        """
    )
    state = session.checkpoint()
    session.rollback(state)
    assert session.run("1").value == "1"
    session.close()


@contained_by(*ALL)
def test_pipes_that_are_full_or_without_a_reader_block_no_caller(session: Attacked) -> None:
    state = session.checkpoint()
    session.run(
        FORGE
        + "def pour(w):\n    os.write(w, b'x')\n    while True: os.write(1, b'x' * 65536)\n"
        + "for _ in range(4): orphan(pour)"
    )
    session.rests()
    poured = session.run("time.sleep(.05)")
    assert poured.status == "ok"
    assert len(poured.stdout) <= 65536 + 100
    session.rollback(state)
    assert session.run("1").stdout == ""
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("word", ["fork", "", "infrastructure", "x" * 3000])
def test_a_refusal_that_a_cell_makes_up_refuses_its_checkpoint_alone(session: Attacked, word: str) -> None:
    session.run(FORGE + f"it._operations['freeze'] = lambda command: it._send_report(command['token'], '-{word}')")
    assert len(session.tries()) < 200
    assert session.run("1").value == "1"
    session.rests()
    session.close()


@contained_by(*ALL)
def test_a_child_that_answers_for_the_interpreter_gains_its_own_cells_status(session: Attacked) -> None:
    state = session.checkpoint()
    answered = session.run(
        FORGE
        + """
frame = sys._getframe()
while 'command' not in frame.f_locals: frame = frame.f_back
token = frame.f_locals['command']['token']
if os.fork() == 0:
    it._pid = os.getpid()
    it._send_report(token, '=\\0=forged')
    while True: pass
while True: pass
"""
    )
    assert (answered.status, answered.value) == ("ok", "forged")
    session.rests()
    session.rollback(state)
    session.rests()
    assert session.run("'it' in globals()").value == "False"
    session.close()


SHARED = {
    "stdout": "os.set_blocking(1, False)",
    "its mode": "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)",
    "channel": "os.set_blocking(3, False)",
    "channel's time": "end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 1000))",
    "a file": "fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)",
    "a pipe": "os.set_blocking(pipe[0], False)",
}


@contained_by(*ALL)
@pytest.mark.parametrize("what", SHARED)
def test_what_a_cell_sets_on_descriptors_is_gone_back_on(session: Attacked, what: str) -> None:
    """They are the copy's too: what is set there is seen in all processes that share them."""
    session.run("import os\nfile, pipe = open('f', 'w+'), os.pipe()\nfile.write('old')\n_ = file.seek(0)")
    state = session.checkpoint()
    session.run(
        "import fcntl, socket, struct\nend = socket.socket(fileno=os.dup(3))\n" + SHARED[what] + "\nend.detach()"
    )
    session.rollback(state)
    for _ in range(3):
        looked = session.run(
            f"""
            import fcntl, os, socket
            print('x' * 300000)
            file.write('new'), file.flush(), file.seek(0)
            time = socket.socket(fileno=os.dup(3)).getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
            flags = [fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_DIRECT) for fd in (1, 3, pipe[0])]
            flags, any(time), file.read()
            #{"x" * 300000}
            """
        )
        assert (looked.status, looked.value) == ("ok", "([0, 0, 0], False, 'new')"), looked.stderr
        assert looked.stdout.startswith("x")
        session.run("_ = file.seek(0)")
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("number", [32, 33])
def test_a_signal_that_the_c_library_keeps_to_itself_does_not_end_a_copy(session: Attacked, number: int) -> None:
    session.run("import os\nx = 1")
    state = session.checkpoint()
    session.run(f"x = 2\nos.killpg(0, {number})")
    for _ in range(2):
        session.rollback(state)
        assert session.run("x").value == "1"
    session.close()


@contained_by(*ALL)
def test_a_full_queue_of_signals_keeps_no_session_from_going_back(jail: Jail) -> None:
    """The queue is its user's, who may be that of other sessions, too."""
    filling, other = jail.session(), jail.session()
    states = [session.run("import os, signal\nx = 1") and session.checkpoint() for session in (other, filling)]
    fill = "signal.pthread_sigmask(signal.SIG_BLOCK, [50])\nfor _ in range(600): os.kill(os.getpid(), 50)"
    assert filling.run(f"x = 2\n{fill}").status == "ok"
    for session, state in zip((other, filling), states, strict=True):
        session.rollback(state)
        assert session.run("x").value == "1"
    for session in (filling, other):
        session.close()


@contained_by(NAMESPACES)
def test_one_sandbox_does_not_fill_anothers_queue_of_signals(jail: Jail) -> None:
    """Each has its own user namespace, where it is not its user that keeps them apart."""
    fill = "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [50])\n"
    fill += "for _ in range(600): os.kill(os.getpid(), 50)\n"
    another = Jail(NAMESPACES)
    filling, other = jail.session(), another.session()
    assert filling.run(fill).status == "ok"
    assert other.run(fill + "signal.sigtimedwait([50], 0).si_pid == os.getpid()").value == "True"
    filling.close()
    another.close()


@contained_by(NAMESPACES)
def test_a_copy_that_a_cell_ends_does_not_lend_its_number(session: Attacked) -> None:
    session.run("x = 1")
    state = session.checkpoint()
    session.run(
        FORGE
        + """
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) not in (1, os.getpid()): os.kill(int(name), signal.SIGKILL)
"""
    )
    session.rests()
    assert len(session.all_processes()) == 2  # it is kept, dead, so that nobody else is taken for it
    assert len(session.processes()) == 1
    session.rests()
    with pytest.raises(SessionLost, match="frozen copy of checkpoint 1 was ended"):
        session.rollback(state)
    session.close()
