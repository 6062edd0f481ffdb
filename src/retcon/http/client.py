"""Requests to a server over connections that are kept: what came back, and nothing of what it means."""

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

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 4.0
"""How long an unused connection is kept: less than the five seconds after which uvicorn, our servers' and vLLM's,
closes it, so that no request meets one that is being closed."""


class ConnectionFailed(Exception):
    """No whole answer: the server could not be reached, broke off, or took too long (`late`)."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """url: that was asked. status: of HTTP. headers: by name, in any case."""

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
        """Raises ValueError where it is none."""
        return json.loads(self.body)


class HttpClient:
    """To any server, as many as there are requests at a time. Of one event loop; use `close` in the end.

    token: a bearer token that every request carries. proxies: whether those of the environment are used, never for a
    server on this machine, which no proxy reaches. A request that is cancelled closes its connection, which tells the
    server to stop.
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
        """body: sent as JSON. seconds: wall time without a byte of the answer. Raises ConnectionFailed."""
        import aiohttp  # takes a third of a second, and most commands ask no server
        from yarl import URL

        if self._session is None:  # not before there is an event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # it would take passwords from ~/.netrc, too, and none beside a token
            )
        sent = {**self._headers, **(headers or {})}  # not the session's own, which a proxy would be sent too
        content = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=seconds)
        try:
            proxy, known_by = _proxy_for(url) if self._proxies else (None, {})
            # aiohttp counts none of the time in which a server takes no more of the request, as one that is stopped
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
        except aiohttp.ConnectionTimeoutError as error:  # a machine that starts, say, whose kernel refuses nothing yet
            raise ConnectionFailed(f"no connection within {CONNECT_SECONDS:g} s") from error
        except TimeoutError as error:
            raise ConnectionFailed(f"no answer in time ({type(error).__name__})", late=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: what is no URL
            raise ConnectionFailed(f"{type(error).__name__}: {' '.join(str(error).split())}") from error

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """Whose certificates are believed: the machine's, or those that SSL_CERT_FILE and SSL_CERT_DIR name."""
        return ssl.create_default_context()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _proxy_for(url: str) -> tuple[str | None, Mapping[str, str]]:
    """The proxy that the environment names for a server, None where there is none, and the headers by which it knows
    us: who is named in its URL. One without a scheme speaks HTTP, as curl has it. Raises ValueError for what is no URL.
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
    """Whether a URL is of the loopback interface."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False
