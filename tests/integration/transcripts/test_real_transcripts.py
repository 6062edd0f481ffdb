"""Real transcripts, where they are: the counts in docs/purify/transcripts.md, and what must hold for each record."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from retcon.purify.offline import Repairer
from retcon.store.records import open_source
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks

DATA = Path(os.environ.get("RETCON_DATA", Path(__file__).parents[3].parent / "shared" / "data")) / "transcripts"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real transcripts in {DATA} (set RETCON_DATA)")
EXPECTED = {  # calls, failed, shallow, deep
    "mathcoder": (4099, 515, 28, 2),
    "mint": (3606, 1226, 75, 8),
    "openai-messages": (84, 35, 6, 3),
    "tora": (1318, 2, 0, 0),
}


@pytest.mark.parametrize("source", list(EXPECTED))
def test_counts_of_a_source(source: str) -> None:
    count = Count()
    formats: Counter[str] = Counter()
    for path in sorted((DATA / source).iterdir()):
        purifier = RecordRepairer(Repairer(), "auto", Sinks(), count)
        again = RecordRepairer(Repairer(), "auto", Sinks(), Count())
        detector = Detector()
        for record in open_source(path).records:
            out = purifier(record)
            assert out is not None
            if out is record.data:
                continue
            assert again(record._replace(data=out)) is out  # once is enough
            found = detector.format_of(msgspec.json.decode(out))
            assert found is not None
            formats[found.name] += 1
    assert (count.calls, count.failed, count.shallow, count.deep) == EXPECTED[source]
    assert sum(formats.values()) == count.changed
    assert count.failed == count.attempts_removed + count.left.total()
