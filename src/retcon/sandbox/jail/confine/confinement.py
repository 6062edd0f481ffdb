"""Confinement of a worker's calls, partly applied by their own processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct

from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine.cgroup import Cgroup
from retcon.sandbox.jail.confine.landlock import Ruleset
from retcon.sandbox.jail.confine.seccomp import Filter, own_signals
from retcon.sandbox.jail.confine.users import become
from retcon.sandbox.jail.messages import Facts
from retcon.sandbox.jail.usage import MachineKills, children

# Loopback interface of the worker's own network namespace: programs may talk to themselves, over it alone.
#
# It is brought up only if the kernel's socket buffers can be bounded: no other limit counts them, and TCP lets them
# grow to some ten MiB per connection.

BUFFERS = "4096 65536 131072"
"""Buffer of a connection in bytes, at each end: minimum, initial, maximum."""
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_READ = 4096


def bring_up_loopback() -> TrafficCounter:
    """Bring up loopback in a new network namespace. Needs its capabilities; raises OSError."""
    for way in ("rmem", "wmem"):
        with open(f"/proc/sys/net/ipv4/tcp_{way}", "w") as file:
            file.write(BUFFERS)
    # TIME_WAIT: a port stays taken for a minute after a connection, also for a session that was rolled back
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/tcp_max_tw_buckets", "w") as file:
        file.write("0")
    traffic = TrafficCounter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    return traffic


class TrafficCounter:
    """Counter of traffic in this process's network namespace."""

    def __init__(self) -> None:
        self._counters = os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)
        self._before = self._now()

    def seen(self) -> bool:
        """Return whether there was any traffic since this was made.

        Then the next call may find remains of it, such as a port that stays taken for a minute if the kernel does not
        let `bring_up_loopback` prevent that.
        """
        return self._now() != self._before

    def _now(self) -> bytes:
        return os.pread(self._counters, _READ, 0)


class Confinement:
    """Confinement of a worker and its calls, made by `isolate`.

    tier: `namespaces`, `landlock` or `rlimits`. root: the folder in which scratch folders are made. writable: folders
    that a call may write, emptied after it, with this `mode` and, if `bounded`, a limited size. folders: absolute paths
    below which a call may get files, besides its scratch folder. proc: descriptor of a /proc, for the worker alone.
    kills: OOM kills of the machine. tasks: other processes of its uid that a call may find running.

    network, files, processes, own_user, system_calls: whether calls are kept from the network, from files and processes
    that are not theirs, from the rights of the user who started the worker, and from parts of the kernel that no call
    needs. traffic: of the calls' loopback, None without one. group: the worker's cgroup, None for the reason
    `no_group`.
    """

    def __init__(self, tier: str, root: str) -> None:
        self.tier = tier
        self.root = root
        self.writable: tuple[str, ...] = (root,)
        self.folders: tuple[str, ...] = ()
        self.mode = 0o700
        self.bounded = False
        self.proc = -1
        self.kills = MachineKills()
        self.tasks = 0
        self.network = self.files = self.processes = self.own_user = self.system_calls = False
        self.become: int | None = None
        self.keeps: int | None = None
        self.kill_reaches = False
        self.only_own_signals = False
        self.traffic: TrafficCounter | None = None
        self.group: Cgroup | None = None
        self.no_group = ""
        self.ruleset: Ruleset | None = None
        self.of_calls: Filter | None = None
        self.of_sessions: Filter | None = None

    def take_user(self, scratch: str) -> None:
        """Switch to the call's user, if the worker has not."""
        if self.become is None:
            return
        os.chown(scratch, self.become, self.become)
        if self.keeps is not None:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
        become(self.become)
        kernel.set_capabilities(self.keeps)

    def confine_call(self) -> None:
        """Apply the last limits to a call's process; only the tier `namespaces` lets it fork afterwards."""
        self._confine(self.of_calls)

    def confine_session(self) -> None:
        """Apply the last limits to a session. It may fork in every tier; `kill_all` ends leftover processes."""
        self._confine(self.of_sessions)

    def _confine(self, rules: Filter | None) -> None:
        if self.tier != "namespaces":
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user undoes it
        if self.ruleset is not None:
            self.ruleset.apply()
        if self.only_own_signals:
            Filter(own_signals(os.getpid())).apply()
        if rules is not None:
            rules.apply()

    def kill_all(self) -> None:
        """End every process that the worker's calls left.

        With `kill_reaches` in one step, which a forking process cannot outrun; else the worker's present children.
        """
        with contextlib.suppress(ProcessLookupError):
            if self.kill_reaches:
                os.kill(-1, signal.SIGKILL)
                return
            for pid in children(self.proc):
                os.kill(pid, signal.SIGKILL)

    def facts(self) -> Facts:
        """Return the pool's facts: what is protected, and in words what is not."""
        return Facts(
            tier=self.tier,
            network=self.network,
            files=self.files,
            processes=self.processes,
            own_user=self.own_user,
            system_calls=self.system_calls,
            no_cgroup=self.no_group,
            unprotected=self.unprotected(),
            folders=list(self.folders),
        )

    def unprotected(self) -> list[str]:
        """Describe gaps, a line per part of docs/sandbox/threats.md."""
        files, processes = [], []
        if not self.files:
            files.append(
                f"ordinary permissions alone guard them{self._as_whom()}; what calls write outside their own folder "
                "(/dev/shm, /tmp) is neither counted nor removed, and the next call can read it"
            )
        elif self.tier != "namespaces":
            files.append("paths, sizes, dates and links of the host's can be seen")
        if self.tier != "namespaces":
            if self.own_user or not self.files:
                files.append("times of those that everyone may write, devices too, can be set to now")
            files.append("deleted ones that stay open are not counted")
            processes.append("their ids can be seen" if self.files else "they can be seen")
        files.append("a shared lock (fcntl) can be held on one that may be read")
        if not self.processes and not self.own_user:
            processes.append("memory, environment and priority of the user's others are open")
        if not self.own_user and not self.only_own_signals and not self.files:
            processes.append("they can be ended")
        lines = ["files: " + "; ".join(files)]
        lines += ["processes: " + "; ".join(processes)] if processes else []
        lines += [] if self.network else ["network: all of it, local services too"]
        if not self.system_calls:
            lines.append("system calls: none is filtered, and a call's processes may outlive it")
        return lines

    def _as_whom(self) -> str:
        if self.keeps is not None:
            return ", and all can be read (Python lies in a folder that only root may enter)"
        return "" if self.own_user else ", as for the user who started the sandbox"
