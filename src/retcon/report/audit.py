"""An audit by replay, as a table."""

from __future__ import annotations

from retcon.core.texts import counted
from retcon.evaluate.audit import Audit, Verdict
from retcon.report.sheet import Sheet
from retcon.report.tables import cell

WAYS = {
    "fresh": "a fresh try from the history before it",
    "raw": "raw: after the failed call",
    "fixed": "fixed: after what SAAR put in its place",
    "raw - fresh": "what the failed call costs: raw − fresh",
    "fixed - fresh": "what the repair brings: fixed − fresh",
}


def audit_sheets(audit: Audit) -> list[Sheet]:
    """Tabulate the chances to pass and what each credit rule was worth."""
    size, repaired = audit.size, [one for one in audit.calls if one.fixed is not None]
    whole = sum(one.of_failure is not None and one.of_fix is not None for one in repaired)
    lost = f" and that have replays of each (left out: {len(repaired) - whole})" if whole < len(repaired) else ""
    title = f"{len(audit.calls)} failed calls, {size.replays} replays of each counterfactual"
    passing = tuple((label, cell(audit.chances[name], 3)) for name, label in WAYS.items())
    return [
        Sheet(
            title,
            ("chance to pass", "mean"),
            ((f"the {whole} of them that SAAR repaired{lost}", passing),),
        ),
        Sheet(
            "Did the credit point the right way?",
            ("rule", "right / wrong / no sign", "right of signs", "gain"),
            tuple(
                (on, tuple(_row(one) for one in audit.verdicts if one.on == on))
                for on in dict.fromkeys(one.on for one in audit.verdicts)
            ),
            (
                "Counted where the tokens made a difference in the replays. Gain: sign × difference in the chance to "
                "pass, mean over all.",
                f"Brackets: 95 % intervals, bootstrap over {len({one.task for one in audit.calls})} problems. "
                f"{counted(audit.rollouts, 'rollout')}, {audit.failed} with a failed call; "
                f"{counted(audit.lost, 'replay')} lost to faults.",
            ),
        ),
    ]


def _row(one: Verdict) -> tuple[str, ...]:
    return (one.rule, f"{one.right} / {one.wrong} / {one.silent}", cell(one.share, 2), cell(one.gain, 3))
