"""Parameters of a request that a server does not take as they are: what it is asked with instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from threading import Barrier
from typing import TypeVar

from retcon.models.remote import RemoteModel
from servers.answering import Answer, Asked, said, serving

T = TypeVar("T")
RENAMED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


def refused(message: str) -> Answer:
    return Answer({"error": {"message": message, "type": "invalid_request_error"}}, 400)


def asking(url: str, work: Callable[[RemoteModel], Awaitable[T]]) -> T:
    """What `work` gives with a model at `url`."""

    async def main() -> T:
        model = RemoteModel("model", url, "small", attempts=1, wait=0.001)
        try:
            return await asyncio.wait_for(work(model), 60)
        finally:
            await model.close()

    return asyncio.run(main())


def test_requests_that_are_all_refused_at_once_keep_their_limit_under_its_new_name() -> None:
    together = Barrier(4, timeout=30)

    def reply(asked: Asked) -> Answer:
        if "max_tokens" not in asked.body:
            return said("42")
        together.wait()
        return refused(RENAMED)

    async def work(model: RemoteModel) -> None:
        await asyncio.gather(*(model.message([], max_tokens=100) for _ in range(4)))

    with serving(reply) as server:
        asking(server.url, work)
    taken = [asked.body for asked in server.asked if "max_tokens" not in asked.body]
    assert [body.get("max_completion_tokens") for body in taken] == [100] * 4
