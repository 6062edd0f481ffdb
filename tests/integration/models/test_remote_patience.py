"""How long a request is made to a server that limits the rate and answers others, or is not there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from threading import Condition
from typing import Any

import pytest

from retcon.core.errors import InfrastructureFault
from retcon.models.remote import RemoteModel, ServerFailed
from servers.answering import Answer, Asked, Reply, said, serving

PATIENCE = 0.5


class Limiting:
    """Answers all but one request at once; that one, whenever others were answered since it was last asked, with 429,
    until `seconds` after it was first asked."""

    def __init__(self, seconds: float, status: int = 429) -> None:
        self._seconds, self._status = seconds, status
        self._began: float | None = None
        self._others, self._changed = 0, Condition()

    def __call__(self, asked: Asked) -> Answer:
        with self._changed:
            if asked.body["messages"][0]["content"] != "one":
                self._others += 1
                self._changed.notify_all()
                return said("42")
            now = time.monotonic()
            self._began = now if self._began is None else self._began
            if now - self._began > self._seconds:
                return said("42")
            enough = self._others + 2  # of which the client has had the first by then
            assert self._changed.wait_for(lambda: self._others >= enough, timeout=30)
            return Answer({"error": {"message": "not now"}}, self._status)


def asked_beside_others(reply: Reply) -> Any:
    """What the one request is answered while another caller goes on asking."""

    async def main(url: str) -> Any:
        model = RemoteModel("model", url, "small", attempts=2, wait=0.01, patience=PATIENCE)

        async def ask(text: str) -> Any:
            return await model.message([{"role": "user", "content": text}])

        async def others() -> None:
            while True:
                await ask("other")

        beside = asyncio.ensure_future(others())
        try:
            return await asyncio.wait_for(ask("one"), 60)
        finally:
            beside.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beside
            await model.close()

    with serving(reply) as server:
        return asyncio.run(main(server.url))


def test_a_request_over_the_rate_waits_for_its_turn_while_others_are_answered() -> None:
    assert asked_beside_others(Limiting(PATIENCE * 1.5))["finish_reason"] == "stop"


def test_it_does_not_wait_for_ever() -> None:
    with pytest.raises(ServerFailed, match="status 429: not now"):
        asked_beside_others(Limiting(60.0))


def test_a_request_that_fails_otherwise_is_not_waited_for_on_account_of_others() -> None:
    with pytest.raises(ServerFailed, match="status 502: not now"):
        asked_beside_others(Limiting(60.0, status=502))


def test_a_machine_that_takes_no_connection_is_away_and_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is started anew, which refuses nothing either: it is asked for as long as there is patience."""
    monkeypatch.setattr("retcon.http.client.CONNECT_SECONDS", 0.02)

    async def main(url: str) -> tuple[str, int]:
        model = RemoteModel("model", url, "small", attempts=1, wait=0.01, patience=0.2)
        with pytest.raises(InfrastructureFault) as lost:
            await model.message([{"role": "user", "content": "one"}])
        await model.close()
        return str(lost.value), model.retried

    with socket.socket() as full, socket.socket() as waits:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waits.connect(full.getsockname())  # nobody takes it in, and there is no place beside it
        said, retried = asyncio.run(main(f"http://127.0.0.1:{full.getsockname()[1]}"))
    assert said.endswith("does not answer: no connection within 0.02 s")
    assert retried > 0
