"""Seeds of independent random streams, derived from what a stream is for."""

from __future__ import annotations

import hashlib
import json


def derive(*parts: int | str) -> int:
    """A seed in [0, 2**63) for the stream that `parts` name, such as derive(run_seed, step, task_id, index).

    The same parts give the same seed in every process and on every machine; 1 and "1" are different parts.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
