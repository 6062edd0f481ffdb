"""One command to a session's interpreter: handed over, watched, until it is answered or the interpreter has ended.

Standard library only: the workers import it.
"""

from __future__ import annotations

import math
import select
import signal

from retcon.sandbox.jail.session.control import Control, Output
from retcon.sandbox.jail.session.copies import Child
from retcon.sandbox.jail.session.deadlines import Deadlines
from retcon.sandbox.jail.session.interpreter import CellCommand, FreezeCommand

READY = select.POLLIN | select.POLLHUP


class HostGone(Exception):
    """The host closed the worker's channel: nobody waits for the answer any more."""


def exchange(
    command: CellCommand | FreezeCommand,
    *,
    interpreter: Child,
    control: Control,
    output: Output,
    host: int,
    deadlines: Deadlines,
) -> None:
    """What was said is in `control` when it returns, what was printed in `output`.

    host: descriptor of the worker's channel. Raises HostGone, and OSError where the interpreter cannot be ended.
    """
    control.ask(command)
    _send(control, interpreter)
    said = control.fileno()
    poller = select.poll()
    poller.register(host, select.POLLRDHUP)  # the next request may be there already
    poller.register(said, control.events)
    for fd in (interpreter.ended, *output.reads):
        poller.register(fd, READY)
    while True:
        ready = dict(poller.poll(math.ceil(1000 * deadlines.wait())))
        if host in ready:
            raise HostGone
        if said in ready:
            if ready[said] & select.POLLOUT:
                _send(control, interpreter)
            if not ready[said] & READY or control.receive():
                poller.modify(said, control.events)
            else:
                poller.unregister(said)
        if interpreter.ended in ready or control.said.done is not None:
            return
        output.read(ready)
        deadlines.check()


def _send(control: Control, interpreter: Child) -> None:
    try:
        control.send()
    except OSError:  # a cell closed the channel
        interpreter.signal(signal.SIGKILL)
