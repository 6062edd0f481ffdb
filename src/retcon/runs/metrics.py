"""metrics.jsonl: a line of numbers for every step of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from retcon.core.errors import RecordError

Metrics = dict[str, float | None]
"""One step, as a line of metrics.jsonl: name to value, None where there is none."""


def read_metrics(path: Path, *, cut_off: bool = False) -> list[Metrics]:
    """The numbers of each line of a metrics file; what is no number is left out.

    cut_off: the file may end in a line that was cut off as it was written, and need not be there. Raises RecordError by
    line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        if cut_off and isinstance(error, FileNotFoundError):
            return []
        raise RecordError(f"{path}: the metrics cannot be read: {error}") from error
    steps: list[Metrics] = []
    for number, line in enumerate(lines, start=1):
        try:
            step = msgspec.json.decode(line, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if cut_off and number == len(lines):
                break
            raise RecordError(f"{path}, line {number}: not a step's metrics: {error}") from error
        steps.append({k: v for k, v in step.items() if v is None or isinstance(v, int | float)})
    return steps
