"""What a service allows and how it is guarded."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from retcon.sandbox.types import Limits

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Raises ValueError where a bound is not above 0 (drain: below 0), and for limits above max_timeout or max_memory.

    limits: of calls that ask for none of their own. max_timeout, max_memory: seconds and MiB that a call may ask for at
    most. workers: calls that the sandbox runs at a time, for the metrics. queue: calls that may wait beside them; more
    are refused. max_calls: calls of one batch. max_body: bytes of a request. max_code: characters of a program.
    judge_chars: characters that code-judge's API gives of stdout and of stderr, each (that service's default).
    fusion_bytes: bytes that SandboxFusion's gives of each (what that service keeps). fusion_wait: seconds that a call
    of SandboxFusion's API waits for a worker at most, beside what its client allows for compiling (verl's gives up
    after 10). token: bearer token that requests must carry, None to ask for none. session_idle: seconds after which an
    unused session is closed when another opens. drain: seconds that what is open gets when the server is told to end.
    """

    limits: Limits = field(default_factory=lambda: Limits(cpu_seconds=10.0, wall_seconds=10.0))
    max_timeout: float = 600.0
    max_memory: int = 16384
    workers: int = 2
    queue: int = 20000
    max_calls: int = 4096
    max_body: int = 64 * MIB
    max_code: int = 2 * MIB
    judge_chars: int = 1000
    fusion_bytes: int = MIB
    fusion_wait: float = 8.0
    token: str | None = None
    session_idle: float = 3600.0
    drain: float = 0.0

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if isinstance(value, int | float) and not (value > 0 or (bound.name == "drain" and value == 0)):
                raise ValueError(f"{bound.name} is {value}: it must be above 0")
        for flag, own, most in (
            ("timeout", max(self.limits.cpu_seconds, self.limits.wall_seconds), self.max_timeout),
            ("memory", self.limits.memory_mb, self.max_memory),
        ):
            if own > most:
                raise ValueError(
                    f"--{flag} is {own:g}, above --max-{flag} {most:g}: a call that asks for none would get more than "
                    "any may ask for; lower the one or raise the other"
                )
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ValueError("the token must be of printable ASCII characters, and not empty")
