"""A server that sends its clients elsewhere: neither programs nor the token go there."""

from __future__ import annotations

import asyncio

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.client import SandboxClient, SandboxRouter
from servers.answering import Answer, Asked, serving


@pytest.mark.parametrize("status", [301, 307])
def test_who_is_sent_elsewhere_does_not_go_there(status: int) -> None:
    seen: list[Asked] = []

    def there(asked: Asked) -> Answer:
        seen.append(asked)
        return Answer({"tier": "landlock"})

    async def main(url: str) -> None:
        for sandbox in (SandboxClient(url, token="secret", tries=1), SandboxRouter([url], token="secret", tries=1)):
            with pytest.raises(SandboxUnavailable, match=rf"{url} answers {status}: is it a retcon sandbox server"):
                await sandbox.start()

    with serving(there) as other:
        location = {"Location": f"{other.url.removesuffix('/v1')}/health"}
        with serving(lambda _: Answer("moved", status, location)) as made:
            asyncio.run(main(made.url.removesuffix("/v1")))
    assert seen == []
