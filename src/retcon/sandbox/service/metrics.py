"""Counters and one histogram in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "retcon_sandbox_"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds."""


class Metrics:
    """What has happened since the service started."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.requests: Counter[int] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def answered(self, api: str, status: str, seconds: float) -> None:
        """A call of `api` ended with `status`, `seconds` (wall) after it was taken in."""
        self.calls[api, status] += 1
        self._sum += seconds
        place = next((i for i, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
        self._buckets[place] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All of it, and the gauges: name to (what it says, value)."""
        lines = _head("calls_total", "counter", "Calls answered, by API and by how they ended.")
        lines += [_line("calls_total", n, api=api, status=status) for (api, status), n in sorted(self.calls.items())]
        lines += _head("http_requests_total", "counter", "Requests answered, by HTTP status.")
        lines += [_line("http_requests_total", n, code=str(code)) for code, n in sorted(self.requests.items())]
        lines += _head("call_seconds", "histogram", "Wall time of a call, from when it was taken in to its result.")
        below = 0
        for bound, count in zip([*map(repr, BUCKETS), "+Inf"], self._buckets, strict=True):
            below += count
            lines.append(_line("call_seconds_bucket", below, le=bound))
        lines += [_line("call_seconds_sum", self._sum), _line("call_seconds_count", below)]
        for name, (says, value) in gauges.items():
            lines += [*_head(name, "gauge", says), _line(name, value)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, says: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {says}", f"# TYPE {PREFIX}{name} {kind}"]


def _line(name: str, value: float, **labels: str) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{PREFIX}{name}{{{inner}}} {value!r}" if inner else f"{PREFIX}{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
