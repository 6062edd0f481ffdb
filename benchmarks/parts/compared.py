"""What `retcon compare` left in compare.json, as texts of a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from retcon.evaluate.statistics import Interval
from retcon.report.comparison import signed
from retcon.report.tables import cell

FIGURES = {
    "pass1_t1": ("pass@1", 3),
    "pass8_t1": ("pass@8", 3),
    "pass1": ("pass@1, top-p", 3),
    "pass1_t1_repaired": ("pass@1, purification on", 3),
    "pass1_t1_faults": ("pass@1, faulty tools", 3),
    "first_try_failures_t1": ("first tries that fail", 3),
    "failed_calls_t1": ("failed calls", 2),
    "tokens_t1": ("tokens", 1),
    "curve_area": ("mean height of the learning curve", 3),
    "pass1_equal_tokens": ("pass@1 at equal tokens", 3),
    "sampled_tokens": ("tokens sampled in training", 0),
}
"""Those that a page shows: a label, and digits."""

Arms = Mapping[str, Mapping[str, Any]]


def table(arms: Arms) -> dict[str, Any]:
    """Each arm's figures, then each other arm's less those of the first; those that were measured."""
    first, *others = arms
    rows = [
        [
            label,
            *(cell(interval(arm.get(name)), digits) for arm in arms.values()),
            *(difference(arms[arm], name, digits) for arm in others),
        ]
        for name, (label, digits) in FIGURES.items()
        if any(arm.get(name) for arm in arms.values())
    ]
    return {"head": ["", *arms, *(f"{arm} − {first}" for arm in others)], "rows": rows}


def by_arm(arms: Arms) -> dict[str, Any]:
    """A row for each arm, where there are many: some of its figures, and how far its pass@1 is from the first one's."""
    names = ("pass1_t1", "pass1_equal_tokens", "failed_calls_t1", "tokens_t1", "sampled_tokens")
    first = next(iter(arms))
    rows = []
    for name, arm in arms.items():
        figures = [cell(interval(arm.get(one)), FIGURES[one][1]) for one in names]
        less = "" if name == first else difference(arm, "pass1_t1", 3)
        rows.append([name, figures[0], less, *figures[1:]])
    heads = [FIGURES[one][0] for one in names]
    return {"head": ["", heads[0], f"less {first}'s", *heads[1:]], "rows": rows}


def difference(arm: Mapping[str, Any], name: str, digits: int) -> str:
    """`+.012 [−.020, +.044]`, with a star where the range leaves out 0."""
    one = interval(arm["difference"].get(name))
    if one is None:
        return "–"
    low, high = (signed(limit, digits) for limit in (one.low, one.high))
    return f"{signed(one.mean, digits)} [{low}, {high}]" + " *" * (one.low > 0 or one.high < 0)


def parse_difference(text: str) -> Interval:
    """Read back what `difference` wrote."""
    numbers = re.findall(r"[+−]?\d*\.\d+", text)
    mean, low, high = (float(number.replace("−", "-")) for number in numbers)
    return Interval(mean, low, high)


def differences(arms: Arms, name: str = "pass1_t1") -> dict[str, Interval]:
    """Of one figure, each arm's from the first."""
    found = {arm: interval(about["difference"][name]) for arm, about in list(arms.items())[1:]}
    return {arm: one for arm, one in found.items() if one is not None}


def interval(limits: Mapping[str, Any] | None) -> Interval | None:
    return None if limits is None else Interval(limits["mean"], limits["low"], limits["high"])
