"""Rows of a data set have every column: what an item lacks is null, and says no more than if it were not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foreign import FORMATS, REPAIRED
from retcon.purify.offline import Repairer
from retcon.transcripts.purifier import purify_transcript
from unit.transcripts.test_samples import RECORDS, SAMPLES


def padded(value: Any) -> Any:
    """Each object of a list with the keys of all of them, as a column of structs gives them."""
    if isinstance(value, dict):
        return {key: padded(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    keys = dict.fromkeys(key for one in value if isinstance(one, dict) for key in one)
    return [{**dict.fromkeys(keys), **padded(one)} if isinstance(one, dict) else padded(one) for one in value]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def check(record: Any) -> None:
    offline = Repairer(state="ignore")
    expected, counted = purify_transcript(record, offline=offline)
    found, count = purify_transcript(padded(record), offline=offline)
    assert count.formats == counted.formats
    assert (count.calls, count.failed, count.shallow) == (counted.calls, counted.failed, counted.shallow)
    assert without_nulls(found) == without_nulls(expected)


@pytest.mark.parametrize(("name", "n"), RECORDS)
def test_nulls_say_nothing(name: str, n: int) -> None:
    check(json.loads((SAMPLES / f"{name}.jsonl").read_bytes().splitlines()[n]))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "ours"])
def test_nulls_say_nothing_in_any_format(name: str) -> None:
    check(FORMATS[name](REPAIRED))
