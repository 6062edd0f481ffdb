"""Pairs of messages: what stands before each repair is the purified transcript, put together once."""

from __future__ import annotations

from typing import Any

import pytest

from foreign import FORMATS, Step, fails, user, works
from retcon.purify.offline import Repairer
from retcon.transcripts.detector import Detector
from retcon.transcripts.formats.messages import pieces_of, rebuild
from retcon.transcripts.pieces import Piece, PieceReading, awaits_output


def steps(repairs: int) -> list[Step]:
    found = [user("roots")]
    for n in range(repairs):
        code = f"import math\nroot{n} = math.{{}}({n})\nprint(root{n})"
        found.append(fails(code.format("sqroot"), "AttributeError", 2, f"Root {n}."))
        found.append(works(code.format("sqrt"), str(n), f"The call is sqrt, {n}."))
    return found


@pytest.mark.parametrize("name", ["messages", "hermes", "markdown"])
def test_what_stands_before_a_repair_is_the_purified_transcript(name: str) -> None:
    record: Any = FORMATS[name](steps(4))
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    results = [Repairer()(trajectory) for trajectory in reading.trajectories]
    new: Any = reading.with_repairs(results)
    items = next(value for value in new.values() if isinstance(value, list))
    pairs = list(reading.pairs(results))
    assert len(pairs) == 4
    for pair in pairs:
        both = [*pair.prompt, *pair.chosen.written]
        assert both == items[: len(both)]
        assert "sqroot" in str(pair.rejected.written)
        assert "sqroot" not in str(both)


def test_each_item_is_put_together_as_often_however_many_repairs_there_are() -> None:
    def times(repairs: int) -> int:
        made = 0

        def counted(item: Any, pieces: Any) -> Any:
            nonlocal made
            made += 1
            return rebuild(item, pieces)

        items: Any = FORMATS["messages"](steps(repairs))["messages"]
        pieces: list[Piece] = []
        for n, item in enumerate(items):
            pieces += pieces_of(item, n, after_call=awaits_output(pieces))
        reading = PieceReading(items, pieces, "t", counted)
        assert len(list(reading.sides(Repairer()(reading.trajectory)))) == repairs
        return made

    assert (times(4), times(12)) == (7, 23)  # as what stands there now, and as what stands before the next
