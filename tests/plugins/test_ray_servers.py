"""A sandbox server on each node of a Ray, which here has one: `make integration`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

pytest.importorskip("ray", reason="ray, which `make integration` installs")

import ray
from rays import a_ray

from retcon.core.errors import SandboxUnavailable
from retcon.plugins.ray_servers import Fleet, sandbox_servers
from retcon.sandbox.client import SandboxRouter

pytestmark = pytest.mark.filterwarnings("default")  # ray's own


@pytest.fixture(scope="module", autouse=True)
def the_ray() -> Iterator[None]:
    with a_ray():
        yield


async def answers(fleet: Fleet) -> list[str]:
    async with SandboxRouter(fleet.urls, token=fleet.token) as router:
        return [result.stdout for result in await asyncio.gather(*(router.run(f"print({n})") for n in range(6)))]


def test_every_node_has_a_server_that_ends_with_the_block() -> None:
    with sandbox_servers(workers=1) as fleet:
        assert len(fleet.urls) == len([node for node in ray.nodes() if node["Alive"]]) == 1
        assert asyncio.run(answers(fleet)) == [f"{n}\n" for n in range(6)]
        assert httpx.post(f"{fleet.urls[0]}/v1/run", json={"code": "print(1)"}).status_code == 401, "no token"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{fleet.urls[0]}/health")


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(SandboxUnavailable, match="no-such-option"), sandbox_servers(options=["--no-such-option"]):
        raise AssertionError("it started")
