"""HTTP client with pooled connections, and a circuit breaker.

The client does not interpret responses. Without a breaker, least load sends all new work to a server that fails at
once, as it never has requests in flight.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    import aiohttp


@dataclass(slots=True)
class CircuitBreaker:
    """Breaker that takes one server out of rotation until a probe succeeds.

    Times are seconds of one clock. A probe that has neither failed nor been answered after `longest` no longer blocks
    other requests: answers may take minutes. A fault after that means a longer pause still.

    Args:
        first: Seconds of the pause after a fault, doubled with each further one.
        longest: Seconds that a pause takes at most, and that a probe is waited for.
    """

    first: float
    longest: float
    until: float = 0.0
    since: float = 0.0
    faults: int = 0
    probing: bool = False

    def allows(self, now: float) -> bool:
        """Return whether the server is in rotation, or due for a probe."""
        return self.until <= now

    def is_resting(self, now: float) -> bool:
        """Return whether it failed and is not probed yet: answers are to requests sent before."""
        return self.until > now and not self.probing

    def record_request(self, now: float) -> None:
        """Record a request to the server; after a fault it is the probe."""
        if self.faults and not self.probing:
            self.probing, self.until = True, now + self.longest

    def record_success(self, now: float) -> None:
        """Record an answer of the server."""
        if not self.is_resting(now):
            self.faults, self.probing, self.until = 0, False, 0.0

    def record_failure(self, now: float) -> None:
        """Record a fault of the server."""
        if not self.is_resting(now):
            self.since = self.since if self.faults else now
            self.until = now + min(self.longest, self.first * 2.0 ** min(self.faults, 30))
            self.faults, self.probing = self.faults + 1, False


CONNECT_SECONDS = 10.0
IDLE_SECONDS = 4.0
"""Time that an unused connection is kept: less than the five seconds after which uvicorn, our servers' and vLLM's,
closes it, so that no request meets one that is being closed."""


class ConnectionFailed(Exception):
    """A request without a complete response: unreachable server, broken connection or timeout (`late`)."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete HTTP response. headers: by name, case-insensitive."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Decode the body. Raises ValueError if it is not JSON."""
        return json.loads(self.body)


class HttpClient:
    """Client for any server, with unlimited concurrency. Bound to one event loop; `close` it at the end.

    token: bearer token of every request. proxies: use the environment's, never for a server on this machine. A
    cancelled request closes its connection, so that the server stops.
    """

    def __init__(self, token: str = "", *, proxies: bool = False) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._proxies = proxies
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request. body: sent as JSON. seconds: timeout between bytes received. Raises ConnectionFailed."""
        import aiohttp  # takes a third of a second, and most commands ask no server
        from yarl import URL

        if self._session is None:  # not before there is an event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # it would also use passwords of ~/.netrc, which conflict with a token
            )
        sent = {**self._headers, **(headers or {})}  # the session's own would also go to the proxy
        content = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=seconds)
        try:
            proxy, known_by = _proxy_for(url) if self._proxies else (None, {})
            # aiohttp has no timeout for sending, during which a stopped server may read nothing
            async with (
                asyncio.timeout(CONNECT_SECONDS + seconds) as sending,
                self._session.request(
                    method,
                    URL(url, encoded=True),
                    data=content,
                    headers=sent,
                    timeout=timeout,
                    allow_redirects=False,
                    proxy=proxy,
                    proxy_headers=known_by,
                    ssl=self._trusted if "https:" in (url[:6], (proxy or "")[:6]) else False,
                ) as answer,
            ):
                sending.reschedule(None)
                return HttpResponse(url, answer.status, answer.headers, await answer.read())
        except aiohttp.ConnectionTimeoutError as error:  # such as a machine that is still booting
            raise ConnectionFailed(f"no connection within {CONNECT_SECONDS:g} s") from error
        except TimeoutError as error:
            raise ConnectionFailed(f"no answer in time ({type(error).__name__})", late=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: an invalid URL
            raise ConnectionFailed(f"{type(error).__name__}: {' '.join(str(error).split())}") from error

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """The machine's certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name."""
        return ssl.create_default_context()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _proxy_for(url: str) -> tuple[str | None, Mapping[str, str]]:
    """Return the environment's proxy for a server, None without one, and the headers that authenticate us there.

    A proxy without a scheme speaks HTTP, as in curl. Raises ValueError if `url` is invalid.
    """
    about = urlsplit(url)
    named = None if _is_here(url) else getproxies().get(about.scheme)
    if not named or proxy_bypass(about.hostname or ""):
        return None, {}
    scheme, _, rest = named.rpartition("://")
    who, known, where = rest.rpartition("@")
    basic = b64encode(unquote(who).encode()).decode()
    return f"{scheme or 'http'}://{where}", {"Authorization": f"Basic {basic}"} if known else {}


def _is_here(url: str) -> bool:
    """Whether a URL leads to the loopback interface."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False
