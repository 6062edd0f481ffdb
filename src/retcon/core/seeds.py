"""Seeds of independent random streams, derived from their purpose."""

from __future__ import annotations

import hashlib
import json


def derive(*parts: int | str) -> int:
    """Derive a seed in [0, 2**63) from parts: derive(run_seed, step, task_id, index).

    Equal parts give equal seeds in every process and on every machine; 1 and "1" are different parts.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
