"""What the endpoint allows."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.core.errors import RecipeError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Raises RecipeError where a bound is below 1 (session_tokens: below 0).

    name: the model's, as clients name it. seed: of what a request without one samples. answer_tokens: of each message
    that the model writes, at most, and where a request asks for no number. session_tokens: that the model writes in a
    session at most; 0 for any number. at_once: requests that are taken in at a time; more are refused. sessions: that
    are open at a time; idle: seconds after which one that nobody used may be ended where another opens. max_body: bytes
    of a request. token: bearer token that requests must carry, None to ask for none.
    """

    name: str
    seed: int = 0
    answer_tokens: int = 1024
    session_tokens: int = 0
    at_once: int = 256
    sessions: int = 4096
    idle: float = 3600.0
    max_body: int = 16 * MIB
    token: str | None = None

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "at_once", "sessions", "idle", "max_body"):
            if getattr(self, name) < 1:
                raise RecipeError(f"--{name.replace('_', '-')} is {getattr(self, name)}: it must be 1 or more")
        if self.session_tokens < 0:
            raise RecipeError(f"--session-tokens is {self.session_tokens}: it must be 0 (no bound) or more")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise RecipeError("the token must be of printable ASCII characters, and not empty")
