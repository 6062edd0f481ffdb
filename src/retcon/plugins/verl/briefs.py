"""What of a trajectory goes along with its batch: all that a selection goes by, in a hundredth of its tokens' room."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

from retcon.core.codec import from_dict, to_dict
from retcon.core.types import Segment, Trajectory, Turn


def pack(trajectory: Trajectory) -> bytes:
    """The trajectory without its prompt, its ids and their log-probs, which are in the batch."""
    brief = replace(trajectory, prompt=(), turns=tuple(map(_brief, trajectory.turns)))
    return zlib.compress(json.dumps(to_dict(brief), default=str).encode(), 1)


def unpack(packed: bytes) -> Trajectory:
    """What `pack` made. Raises RecordError."""
    return from_dict(json.loads(zlib.decompress(packed)), "a trajectory of verl's batch")


def _brief(turn: Turn) -> Turn:
    segments = tuple(Segment(segment.kind, segment.text) for segment in turn.segments)
    return replace(turn, segments=segments, abandoned=tuple(map(_brief, turn.abandoned)))
