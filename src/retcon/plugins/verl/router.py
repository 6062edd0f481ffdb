"""verl's request load balancer, by tokens: a rollout stays where its prefix is, others go where the fewest are held."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_ROLLOUTS = 100_000
"""Of which it is remembered where they are; the oldest are forgotten."""


@dataclass(slots=True)
class _Request:
    server: str
    tokens: int


class RetconRouter:
    """`rollout.router_config_path` of verl names a file with `router_class: retcon.plugins.verl.router.RetconRouter`.

    A request counts with the tokens that it may hold: its prompt and what it may generate. servers: handles by their
    addresses. Follows verl's `RequestLoadBalancer`, whose methods run one at a time, in an actor.
    """

    def __init__(self, servers: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        self._servers = dict(servers)
        self._load = dict.fromkeys(self._servers, 0)
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._under_way: dict[str, list[_Request]] = {}

    def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids", "sampling_params"]

    def require_release_fields(self) -> list[str]:
        return ["request_id"]

    def acquire_server(
        self, request_id: str, prompt_ids: Sequence[int] = (), sampling_params: Mapping[str, Any] | None = None
    ) -> tuple[str, Any]:
        """Where a request goes, and its handle. Raises RuntimeError, as verl has it, where there is no server."""
        if not self._servers:
            raise RuntimeError("No available servers in load balancer")
        tokens = len(prompt_ids) + int((sampling_params or {}).get("max_tokens") or 0)
        home = self._homes.get(request_id)
        if home not in self._servers:
            home = min(self._load, key=self._load.__getitem__)  # of two with as many requests, that with shorter ones
        self._homes[request_id] = home
        self._homes.move_to_end(request_id)
        if len(self._homes) > MOST_ROLLOUTS:
            self._homes.popitem(last=False)
        self._load[home] += tokens
        self._under_way.setdefault(request_id, []).append(_Request(home, tokens))
        return home, self._servers[home]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """A request is over; what is not known is ignored."""
        requests = self._under_way.get(request_id or "", [])
        done = next((one for one in requests if one.server == server_id), None)
        if done is None:
            return
        requests.remove(done)
        if not requests:
            del self._under_way[request_id or ""]
        if server_id in self._load:
            self._load[server_id] -= done.tokens

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        for name, handle in servers.items():
            self._servers[name] = handle
            self._load.setdefault(name, 0)

    def remove_servers(self, server_ids: Sequence[str]) -> None:
        """Rollouts that were there are given another home with their next request. What is under way there is of no
        account any more, also where a server of that name comes back."""
        for name in server_ids:
            self._servers.pop(name, None)
            self._load.pop(name, None)
        for request_id, requests in list(self._under_way.items()):
            if left := [one for one in requests if one.server in self._servers]:
                self._under_way[request_id] = left
            else:
                del self._under_way[request_id]

    def get_all_servers(self) -> list[str]:
        return list(self._servers)

    def get_total_inflight(self) -> int:
        return sum(one.server in self._servers for requests in self._under_way.values() for one in requests)

    def get_inflight_count(self, server_id: str) -> int:
        return sum(one.server == server_id for requests in self._under_way.values() for one in requests)

    def get_status(self) -> dict[str, Any]:
        return {
            "servers": {name: self.get_inflight_count(name) for name in self._servers},
            "tokens": dict(self._load),
            "total_inflight": self.get_total_inflight(),
            "active_servers": len(self._servers),
        }

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Every rollout's next request is placed anew: the servers have forgotten what they had cached."""
        cleared = len(self._homes)
        self._homes.clear()
        return {"cleared_entries": cleared, "server_loads": dict(self._load)}
