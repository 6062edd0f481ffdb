"""Cards of evaluations as JSON and Markdown, and comparisons by problem."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from retcon.core.errors import CheckpointError
from retcon.evaluate.result import Problem, Result, Setting, read_result
from retcon.evaluate.statistics import (
    Interval,
    over_problems,
    paired_interval,
    pass_at_k,
    problems_needed,
    share_interval,
    standard_error,
)
from retcon.store.whole import write_whole

CARD = "card.json"
EFFECT = 0.03
"""The difference that the power note is about."""
PASS_AT = (1, 2, 4, 8, 10, 16, 32, 64)

Value = Callable[[Problem], float | None]
FIGURES: Mapping[str, Value] = {
    "calls": lambda p: p.calls,
    "failed_calls": lambda p: p.failed_calls,
    "tokens": lambda p: p.tokens,
    "prompt_tokens": lambda p: p.prompt_tokens,
}
"""Means of a rollout, each of a problem."""


def card_of(result: Result) -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a result."""
    recipe: Mapping[str, Mapping[str, Any]] = result.recipe
    rollout, evaluate = recipe.get("rollout", {}), recipe.get("evaluate", {})
    limits = ("max_tokens", "max_response_tokens", "max_turns", "lookahead_tokens")
    calls = ("wall_seconds", "cpu_seconds", "memory_mb", "output_chars", "sessions")
    repair = evaluate.get("repair", "none")
    return {
        "model": result.checkpoint,
        **result.about,
        "tools": list(rollout.get("tools", ())),
        "purification": repair,
        "limits": {
            **{name: rollout[name] for name in limits if name in rollout},
            "call": {name: recipe["sandbox"][name] for name in calls if name in recipe.get("sandbox", {})},
        },
        "rollouts": evaluate.get("samples"),
        "seed": evaluate.get("seed"),
        "inputs": result.inputs,
        "settings": {name: figures_of(setting) for name, setting in result.settings.items()},
        "cost": {
            name: {"wall_s": setting.wall_s, "cpu_s": setting.cpu_s, "tool_s": _tool_seconds(setting)}
            for name, setting in result.settings.items()
        },
    }


def figures_of(setting: Setting) -> dict[str, Any]:
    """Return a setting's figures with 95 % intervals over problems. Times are left out."""
    measured = [p for p in setting.problems if p.samples]
    found: dict[str, Any] = {
        "sampling": {"temperature": setting.temperature, "top_p": setting.top_p, **setting.sampling},
        "problems": len(setting.problems),
        "rollouts": sum(p.samples for p in measured),
        "lost": setting.lost,
    }
    for k in PASS_AT:
        if rates := setting.passes(k):
            found[f"pass@{k}"] = _share(rates)
    votes = [p.majority for p in measured if p.majority is not None]
    if votes and max(p.samples for p in measured) > 1:
        found["majority"] = _share(votes)
    for judge in sorted({name for p in measured for name in p.grades}):
        found[f"pass@1 ({judge})"] = _share([p.grades[judge] for p in measured if judge in p.grades])
    if disputed := [p.task for p in measured if len(set(p.grades.values())) > 1]:
        found["judges differ on"] = disputed
    for name, value in FIGURES.items():
        if known := [v for p in measured if (v := value(p)) is not None]:
            found[name] = _interval(over_problems(known))
    return {**found, "stops": setting.stops, "failure_types": setting.failure_types}


def write_card(folder: Path, result: Result) -> None:
    """Write `card.json` and `card.md` into an evaluation's folder. Raises StorageError."""
    card = card_of(result)
    write_whole(folder / CARD, msgspec.json.format(msgspec.json.encode(card), indent=1))
    write_whole(folder / "card.md", card_markdown(card))


def card_markdown(card: Mapping[str, Any]) -> str:
    """Render the card for people."""
    benchmark = card.get("benchmark") or {}
    title = f"{card['model']} on {benchmark.get('name') or card.get('tasks') or 'problems'}"
    protocol = [
        *([("settings", name)] if (name := card.get("protocol")) else []),
        ("tools", ", ".join(card["tools"]) or "off"),
        ("purification", "off" if card["purification"] == "none" else card["purification"]),
        ("rollouts of a problem", card["rollouts"]),
        ("limits", as_text(card["limits"])),
        *((name, as_text(value)) for name in ("prompt", "graders", "template", "benchmark", "versions", "inputs")
          if (value := card.get(name))),
    ]  # fmt: skip
    lines = [f"# {title}", "", "| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in protocol)]
    for name, figures in card["settings"].items():
        cost = card["cost"][name]
        lines += [
            "",
            f"## {as_text(figures['sampling'])}",
            "",
            "| | mean | 95 % | standard error |",
            "|---|---:|---:|---:|",
        ]
        for figure, value in figures.items():
            if isinstance(value, dict) and "mean" in value:
                error = f"{value['error']:.4f}" if "error" in value else ""
                lines.append(
                    f"| {figure} | {value['mean']:.4g} | {value['low']:.4g} to {value['high']:.4g} | {error} |"
                )
        lines += ["", f"{figures['problems']} problems, {figures['rollouts']} rollouts, {figures['lost']} lost. "
                  f"Ended by {as_text(figures['stops'])}. Failed calls: {as_text(figures['failure_types']) or 'none'}. "
                  f"Wall {cost['wall_s']:.0f} s, CPU {cost['cpu_s']:.0f} s, tools {cost['tool_s']:.1f} s."]  # fmt: skip
        if disputed := figures.get("judges differ on"):
            lines += ["", f"Judges differ on: {', '.join(disputed)}."]
    return "\n".join([*lines, ""])


def _share(rates: Sequence[float]) -> dict[str, float]:
    return {**_interval(share_interval(rates)), "error": standard_error(rates)}


def _interval(found: Interval) -> dict[str, float]:
    return {"mean": found.mean, "low": found.low, "high": found.high}


def _tool_seconds(setting: Setting) -> float:
    return round(sum(setting.tool_seconds.get(p.task, 0.0) * p.samples for p in setting.problems), 3)


def as_text(value: object) -> str:
    """Render a mapping in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {as_text(one)}" for key, one in value.items() if one not in ("", None, {}, []))
    return str(value)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ⏎ ")


@dataclass(frozen=True, slots=True)
class PairedResults:
    """Paired comparison of two evaluations, second less first.

    Args:
        name: folder of both, and setting.
        problems: that both measured; left_out: that only one did.
        figures: name to (first, second, difference).
        better, worse: problems at which the second has a higher or lower pass rate.
        needed: problems at which a difference of EFFECT would show; None where the rates never differ.
        protocol: keys that differ, each with both values.
    """

    name: str
    problems: int
    left_out: int
    figures: Mapping[str, tuple[float, float, Interval]]
    better: int
    worse: int
    needed: int | None
    protocol: Mapping[str, tuple[object, object]]


def evaluations_in(folder: Path) -> dict[str, Path]:
    """Map name to result.json of every evaluation in a folder; "" is its own. Raises CheckpointError if empty."""
    own = folder / "result.json"
    found = (
        {"": own}
        if own.is_file()
        else {str(path.parent.relative_to(folder)): path for path in sorted(folder.rglob("result.json"))}
    )
    if not found:
        raise CheckpointError(f"{folder} has no evaluation's result.json; `retcon eval` makes one")
    return found


def compare_evaluations(first: Path, second: Path, price: tuple[float, float] | None = None) -> Iterator[PairedResults]:
    """Compare the evaluations of two folders by name and problem.

    price: dollars for a million tokens read and written. Raises CheckpointError where nothing has a counterpart.
    """
    ours, theirs = evaluations_in(first), evaluations_in(second)
    if len(ours) == len(theirs) == 1:
        pairs = [(name, path, next(iter(theirs.values()))) for name, path in ours.items()]
    else:
        pairs = [(name, path, theirs[name]) for name, path in ours.items() if name in theirs]
    if not pairs:
        raise CheckpointError(f"{first} has {', '.join(ours)}, and {second} {', '.join(theirs)}: no name is in both")
    for name, a, b in pairs:
        one, other = read_result(a), read_result(b)
        shared = [key for key in one.settings if key in other.settings]
        if not shared and len(one.settings) == len(other.settings) == 1:
            shared = list(one.settings)
        if not shared:
            raise CheckpointError(f"{a} has the settings {', '.join(one.settings)}, {b} {', '.join(other.settings)}")
        for key in shared:
            theirs_at = other.settings.get(key) or next(iter(other.settings.values()))
            protocol = _differences(card_of(one), card_of(other))
            yield _compare(f"{name} {key}".strip(), one.settings[key], theirs_at, protocol, price)


def _compare(
    name: str, one: Setting, other: Setting, protocol: Mapping[str, tuple[object, object]],
    price: tuple[float, float] | None,
) -> PairedResults:  # fmt: skip
    first, second = ({p.task: p for p in setting.problems if p.samples} for setting in (one, other))
    both = [task for task in first if task in second]
    if not both:
        raise CheckpointError(f"{name}: the two evaluations have no problem in common")
    values: dict[str, Value] = {"avg@k": lambda p: p.passed / p.samples}
    for k in PASS_AT[1:]:
        if all(p.samples >= k for tasks in (first, second) for p in tasks.values()):
            values[f"pass@{k}"] = lambda p, k=k: pass_at_k(p.samples, p.passed, k)  # type: ignore[misc]
    values |= {"majority": lambda p: p.majority, **FIGURES}
    if price is not None:
        read, written = price
        values["cost ($)"] = lambda p: ((p.prompt_tokens or 0) * read + p.tokens * written) / 1e6
    by_task = {
        figure: tuple({task: v for task, p in side.items() if (v := value(p)) is not None} for side in (first, second))
        for figure, value in values.items()
    }
    by_task |= {"seconds": (one.seconds, other.seconds), "tool seconds": (one.tool_seconds, other.tool_seconds)}
    found: dict[str, tuple[float, float, Interval]] = {}
    for figure, (left, right) in by_task.items():
        if known := [(left[task], right[task]) for task in both if task in left and task in right]:
            ours, theirs = zip(*known, strict=True)
            spread = paired_interval([y - x for x, y in known])
            found[figure] = (statistics.fmean(ours), statistics.fmean(theirs), spread)
    rates = [second[task].passed / second[task].samples - first[task].passed / first[task].samples for task in both]
    deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
    return PairedResults(
        name, len(both), len(first.keys() ^ second.keys()), found, sum(r > 0 for r in rates), sum(r < 0 for r in rates),
        problems_needed(deviation, EFFECT) if deviation else None, protocol,
    )  # fmt: skip


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Keys of model and protocol in which two cards differ, with both values."""
    measured = ("settings", "cost")
    found = {key: (one.get(key), other.get(key)) for key in {**one, **other}
             if key not in measured and one.get(key) != other.get(key)}  # fmt: skip
    ours, theirs = ([s["sampling"] for s in card["settings"].values()] for card in (one, other))
    return found | ({"sampling": (ours, theirs)} if ours != theirs else {})
