"""Request load balancer for verl, sticky by prefix, balanced by tokens."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retcon.http.client import CircuitBreaker

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds that a server gets no requests after it failed one; long enough for the fault of a probe to get here."""
MOST_ROLLOUTS = 100_000
"""Of which it is remembered where they are; the oldest are forgotten."""


class RetconRouter:
    """Router for verl; a file with `router_class: retcon.plugins.verl.router.RetconRouter` names it.

    A request counts with the tokens that it may hold: its prompt and what it may generate. servers: handles by their
    addresses. Follows verl's `RequestLoadBalancer`, whose methods run one at a time, in an actor. verl says when a
    request is over and not how it went, so our agent loops report what failed (`failed`); see `CircuitBreaker`.
    """

    def __init__(
        self,
        servers: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._servers, self._load, self._breakers = dict[str, Any](), dict[str, int](), dict[str, CircuitBreaker]()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._under_way: dict[tuple[str, str | None], list[int]] = {}  # tokens, by server and request id
        self.add_servers(servers)

    def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids", "sampling_params"]

    def require_release_fields(self) -> list[str]:
        return ["request_id"]

    def acquire_server(
        self, request_id: str, prompt_ids: Sequence[int] = (), sampling_params: Mapping[str, Any] | None = None
    ) -> tuple[str, Any]:
        """Return the server and handle for a request. Raises RuntimeError, as verl does, where there is no server."""
        if not self._servers:
            raise RuntimeError("No available servers in load balancer")
        tokens = len(prompt_ids) + int((sampling_params or {}).get("max_tokens") or 0)
        now, home = self._clock(), self._homes.pop(request_id, "")
        if home in self._servers:
            self._breakers[home].record_success(now)  # else it would have been reported
        if home not in self._servers or not self._breakers[home].allows(now):
            home = min(self._load, key=lambda name: self._order(name, now))
        self._breakers[home].record_request(now)
        self._homes[request_id] = home
        if len(self._homes) > MOST_ROLLOUTS:
            self._homes.popitem(last=False)
        self._load[home] += tokens
        self._under_way.setdefault((home, request_id), []).append(tokens)
        return home, self._servers[home]

    def _order(self, name: str, now: float) -> tuple[int, int]:
        """Sort key: fewest faults in a row where all servers rest, then fewest requests, then shorter ones."""
        breaker = self._breakers[name]
        return 0 if breaker.allows(now) else breaker.faults, self._load[name]

    def failed(self, request_id: str) -> int:
        """Place a failed request anew; return how many servers there are to try."""
        home = self._homes.pop(request_id, "")
        if home in self._servers:
            self._breakers[home].record_failure(self._clock())
        return len(self._servers)

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """End a request; unknown ones are ignored."""
        if tokens := self._under_way.get((server_id, request_id)):
            self._load[server_id] -= tokens.pop(0)
            if not tokens:
                del self._under_way[server_id, request_id]

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        for name, handle in servers.items():
            self._servers[name] = handle
            self._load.setdefault(name, 0)
            self._breakers[name] = CircuitBreaker(FIRST_PAUSE, LONGEST_PAUSE)

    def remove_servers(self, server_ids: Sequence[str]) -> None:
        """Remove servers; their rollouts move with their next request. Requests under way there no longer count, also
        where a server of that name comes back."""
        for name in server_ids:
            self._servers.pop(name, None)
            self._load.pop(name, None)
        self._under_way = {key: tokens for key, tokens in self._under_way.items() if key[0] in self._servers}

    def get_all_servers(self) -> list[str]:
        return list(self._servers)

    def get_total_inflight(self) -> int:
        return sum(map(self.get_inflight_count, self._servers))

    def get_inflight_count(self, server_id: str) -> int:
        return sum(len(tokens) for (server, _), tokens in self._under_way.items() if server == server_id)

    def get_status(self) -> dict[str, Any]:
        return {
            "servers": {name: self.get_inflight_count(name) for name in self._servers},
            "tokens": dict(self._load),
            "total_inflight": self.get_total_inflight(),
            "active_servers": len(self._servers),
        }

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Place every rollout's next request anew, as caches were dropped."""
        cleared = len(self._homes)
        self._homes.clear()
        return {"cleared_entries": cleared, "server_loads": dict(self._load)}
