"""A session's code against the frozen copies, and against being stopped: whatever process takes a copy's place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jail import ALL, Attacked, Jail, contained_by
from retcon.core.errors import SessionLost

SLACK = 40 << 20  # of each process: the warm interpreter, which no process answers for

# finds the interpreter's own object and has `work` done by an orphan, which so takes the copy's place
FORGE = """
import ctypes, gc, os, signal, sys, threading, time
it = next(o for o in gc.get_objects() if type(o).__name__ == 'Interpreter')
def orphan(work):
    reads, writes = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork(): os._exit(0)
        for sent in (signal.SIGINT, signal.SIGXCPU, signal.SIGHUP, signal.SIGTERM): signal.signal(sent, signal.SIG_IGN)
        try: work(writes)
        finally: os._exit(0)
    os.waitpid(between, 0)
    os.read(reads, 1)
def forge(work):
    def forged(command):
        orphan(work)
        it._send_report(command['token'], '=')
    it._operations['freeze'] = forged
def spin(writes):
    os.write(writes, b'x')
    while True: pass
"""
EAT = """
import mmap
def eat(mib):
    x = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for a in range(0, len(x), 4096): x[a] = 1
    return x
"""


@pytest.fixture
def session(jail: Jail) -> Attacked:
    return jail.session()


@contained_by(*ALL)
@pytest.mark.parametrize(
    "work",
    [
        "def work(w):\n    if os.fork() == 0:\n        while True: pass\n    os.write(w, b'x')\n"
        "    while True:\n        if os.fork() == 0:\n            eat(100)\n            while True: pass",
        "def work(w):\n    threading.Thread(target=spin, args=(w,), daemon=True).start()\n    while True: pass",
    ],
    ids=["fork bomb", "thread"],
)
def test_a_forged_copy_that_is_more_than_one_thread_is_none(session: Attacked, work: str) -> None:
    session.run(FORGE + EAT + work + "\nforge(work)")
    with pytest.raises(SessionLost, match="kept the interpreter from being copied") as lost:
        session.checkpoint()
    assert lost.value.by_own_code
    session.rests()
    assert session.processes() == []
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("made", ["none", "two"])
def test_the_one_new_process_is_the_copy_or_there_is_none(session: Attacked, made: str) -> None:
    said = "it._send_report(command['token'], '=')"
    forged = {
        "none": f"it._operations['freeze'] = lambda command: {said}",
        "two": f"it._operations['freeze'] = lambda command: (orphan(spin), orphan(spin), {said})",
    }
    session.run(FORGE + forged[made])
    with pytest.raises(SessionLost, match="kept the interpreter from being copied"):
        session.checkpoint()
    session.rests()
    assert session.processes() == []
    session.close()


@contained_by(*ALL)
def test_a_forged_copy_is_stopped_and_runs_only_when_it_is_gone_back_to(session: Attacked) -> None:
    session.run(
        FORGE + EAT + "def work(w):\n    os.write(w, b'x')\n    x = eat(100)\n    while True: pass\nforge(work)"
    )
    state = session.checkpoint()
    session.rests()
    assert len(session.processes()) == 2
    assert session.run("1 + 1").value == "2"
    session.rests()
    with pytest.raises(SessionLost):  # what it put in its copy's place is no interpreter
        session.rollback(state)
    session.rests()
    assert session.processes() == []
    session.close()


@contained_by(*ALL)
def test_a_copy_that_a_cell_wakes_is_ended_when_it_runs(session: Attacked) -> None:
    session.run(FORGE + "forge(spin)")
    state = session.checkpoint()
    woken = session.run(
        """
        for pid in range(os.getpid(), os.getpid() + 40):
            try: pid == os.getpid() or os.kill(pid, signal.SIGCONT)
            except OSError: pass
        end = time.monotonic() + .3
        while time.monotonic() < end: pass
        """
    )
    assert woken.status == "ok", woken
    session.rests()
    with pytest.raises(SessionLost):
        session.rollback(state)
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_a_signal_to_all_of_its_processes_does_not_end_a_copy(session: Attacked, handler: str) -> None:
    """A copy is stopped, and would get it when it is gone back to."""
    session.run("import os, signal\nx = 1")
    state = session.checkpoint()
    sent = "for n in ('TERM', 'HUP', 'USR1', 'RTMIN'):\n    n = getattr(signal, f'SIG{n}')\n"
    session.run(f"x = 2\n{sent}    signal.signal(n, signal.{handler})\n    os.killpg(0, n)")
    for _ in range(2):
        session.rests()
        session.rollback(state)
        assert session.run("x").value == "1"
    session.close()


@contained_by(*ALL)
def test_what_a_woken_copy_starts_counts_and_is_ended(session: Attacked) -> None:
    session.run(
        FORGE
        + EAT
        + """
def work(w):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
    os.write(w, b'x')
    signal.sigwait([signal.SIGCONT])
    for _ in range(6):
        if os.fork() == 0:
            x = eat(60)
            time.sleep(60)
    time.sleep(60)
forge(work)
"""
    )
    session.checkpoint()
    session.run(
        """
        for pid in range(os.getpid(), os.getpid() + 40):
            try: pid == os.getpid() or os.kill(pid, signal.SIGCONT)
            except OSError: pass
        time.sleep(.5)
        """
    )
    session.rests()
    assert session.memory() < (128 << 20) + len(session.processes()) * SLACK
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("where", ["before", "after_in_parent", "after_in_child"])
def test_what_a_hook_at_the_fork_starts_is_stopped_or_ends_the_session(session: Attacked, where: str) -> None:
    session.run(FORGE + f"armed = [1]\nos.register_at_fork({where}=lambda: armed and (armed.clear(), orphan(spin)))")
    prevented = session.tries()
    session.rests()
    prevented = prevented or session.tries(rollback="checkpoint 1")
    assert prevented == "" or "copied" in prevented
    session.rests()
    session.close()


@contained_by(*ALL)
def test_processes_that_wake_each_other_stop_all_the_same(session: Attacked) -> None:
    state = session.checkpoint()
    session.run(
        FORGE
        + """
group = os.getpgrp()
for _ in range(4):
    if os.fork() == 0:
        while True:
            for pid in range(group, group + 12):
                try: os.kill(pid, signal.SIGCONT)
                except OSError: pass
"""
    )
    session.rests()
    assert "have not ended" in session.tries()
    session.rests()
    session.rollback(state)
    assert len(session.processes()) == 2
    session.rests()
    session.close()


@contained_by(*ALL)
def test_no_timer_wakes_a_stopped_process(session: Attacked) -> None:
    number = {"x86_64": 222, "aarch64": 107}[os.uname().machine]
    armed = session.run(
        FORGE
        + f"""
libc = ctypes.CDLL(None, use_errno=True)
event = (ctypes.c_int * 16)()
event[2], event[3] = signal.SIGCONT, 0  # sigev_signo, SIGEV_SIGNAL
timer, each = ctypes.c_int(), (ctypes.c_long * 4)(0, 10**6, 0, 10**6)
made = libc.syscall({number}, 1, event, ctypes.byref(timer))
libc.syscall({number} + 1 if {number} == 222 else 110, timer, 0, each, None)
signal.setitimer(signal.ITIMER_REAL, .01, .01)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
made, libc.syscall({number}, 1, None, ctypes.byref(timer))
"""
    )
    assert armed.value == "(-1, 0)", armed
    session.rests()
    session.close()


@contained_by(*ALL)
def test_an_orphaned_process_group_that_the_kernel_wakes_does_nothing(session: Attacked) -> None:
    """Where a process ends whose child is the last link of a stopped process group, the kernel sends it SIGCONT."""
    session.run(
        FORGE
        + """
def work(w):
    os.setpgid(0, link)
    os.write(w, b'x')
    while True:
        try: open('woken', 'a').close()
        except OSError: pass
def forged(command):
    global link
    link = os.fork()
    if link == 0:
        time.sleep(60)
    os.setpgid(link, link)
    orphan(work)
    it._send_report(command['token'], '=')
it._operations['freeze'] = forged
open('kept', 'w').write('x')
"""
    )
    state = session.checkpoint()
    session.run("os.unlink('woken') if os.path.exists('woken') else None")
    with pytest.raises(SessionLost):
        session.rollback(state)
    session.rests()
    assert session.processes() == []
    session.close()


@contained_by(*ALL)
def test_orphans_that_a_cell_keeps_to_itself_are_found(session: Attacked) -> None:
    state = session.checkpoint()
    session.run(
        FORGE + "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\norphan(spin)\norphan(lambda w: (os.setsid(), spin(w)))"
    )
    session.rests()
    assert len(session.processes()) == 4
    session.rollback(state)
    session.rests()
    assert len(session.processes()) == 2
    session.close()


@contained_by(*ALL)
def test_a_process_whose_first_thread_has_ended_is_stopped_too(session: Attacked) -> None:
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    state = session.checkpoint()
    session.run(
        FORGE
        + f"""
def leave(w):
    threading.Thread(target=spin, args=(w,), daemon=True).start()
    ctypes.CDLL(None).syscall({number}, 0)
orphan(leave)
"""
    )
    session.rests()
    assert "have not ended" in session.tries()
    session.rollback(state)
    session.rests()
    assert len(session.processes()) == 2
    session.close()


@contained_by(*ALL)
def test_memory_that_is_filled_at_a_cells_very_end_is_not_kept(session: Attacked) -> None:
    full = session.run(
        FORGE
        + EAT
        + """
reads, writes = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        x = eat(80)
        os.write(writes, b'x')
        while True: time.sleep(60)
for _ in range(4): os.read(reads, 1)
"""
    )
    assert full.status in ("ok", "limit")
    session.rests()
    assert session.memory() < (128 << 20) + len(session.processes()) * SLACK
    with pytest.raises(SessionLost, match="held more than 128 MiB together") as lost:
        session.run("1")
    assert lost.value.by_own_code
    session.close()


@contained_by(*ALL)
def test_a_fork_bomb_goes_on_across_checkpoints_within_its_bound(jail: Jail) -> None:
    session = jail.session(processes=8)
    first = session.checkpoint()
    session.run(
        "import os\nif os.fork() == 0:\n    while True:\n        try:\n            if os.fork() == 0: os.setsid()\n        except OSError: pass"
    )
    for _repeat in range(2):
        assert "fault" not in session.tries()
        session.rests()
    session.rollback(first)
    session.rests()
    assert session.run("1").value == "1"
    session.close()


@contained_by(*ALL)
def test_a_session_with_what_it_may_signal_keeps_that_id_to_itself(session: Attacked) -> None:
    """The filter lets it signal its first process by its id alone: nobody else may get that id while it lives."""
    first = session.processes()[0]
    state = session.checkpoint()
    session.run("import os\nos._exit(1)")
    session.rollback(state)
    kept = Path(f"/proc/{first}/stat")
    own = os.getuid() != 0 and not session.jail.can_signal_others
    assert not own or kept.read_text().rpartition(")")[2].split()[0] == "Z"
    assert session.run("1").value == "1"
    session.rests()
    session.close()


@contained_by(*ALL)
def test_limits_and_memory_of_a_copy_are_out_of_reach(session: Attacked) -> None:
    session.run("x = 1")
    state = session.checkpoint()
    session.run(
        """
        import os, resource
        for pid in range(os.getpid() - 4, os.getpid() + 40):
            for attack in (
                lambda: resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0)),
                lambda: os.sched_setaffinity(pid, {0}),
                lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
                lambda: open(f'/proc/{pid}/mem', 'r+b').close(),
                lambda: os.setpgid(pid, 0),
            ):
                try: pid == os.getpid() or attack()
                except OSError: pass
        x = 2
        """
    )
    session.rollback(state)
    assert session.run("x").value == "1"
    session.rests()
    session.close()


@contained_by(*ALL)
def test_what_cells_put_in_the_place_of_forks_and_waits_is_not_used(session: Attacked) -> None:
    session.run(
        "x = 1\nimport os, signal\nfor name in ('fork', 'wait', 'waitpid', 'getpid', 'kill', 'uname', '_exit'): setattr(os, name, None)\n"
        "signal.pthread_sigmask = signal.sigwaitinfo = signal.signal = None"
    )
    state = session.checkpoint()
    session.run("x = 2")
    session.rollback(state)
    assert session.run("x").value == "1"
    session.close()
