"""Statistics of evaluations on worked examples, cards, and two evaluations compared by problem."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from retcon.core.errors import CheckpointError
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn
from retcon.evaluate.card import card_of, compare_evaluations, evaluations_in, write_card
from retcon.evaluate.result import Result, score, write_result
from retcon.evaluate.statistics import (
    majority,
    paired_interval,
    pass_at_k,
    problems_needed,
    share_interval,
    standard_error,
)


def test_pass_at_k_is_the_share_of_all_subsets_that_hold_a_pass() -> None:
    rolls = [True, False, False, True, False]
    subsets = list(itertools.combinations(rolls, 3))
    assert pass_at_k(5, 2, 3) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_the_standard_error_is_millers_clustered_one() -> None:
    """Miller 2024, equation 4, written out as its triple sum over rollouts; its n is N - 1 here, as there are few."""
    groups = [[1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1]]
    rolls = [s for group in groups for s in group]
    mean, count = statistics.fmean(rolls), len(rolls)
    plain = sum((s - mean) ** 2 for s in rolls) / count**2
    within = sum((a - mean) * (b - mean) for g in groups for i, a in enumerate(g) for j, b in enumerate(g) if i != j)
    theirs = math.sqrt(plain + within / count**2)
    ours = standard_error([statistics.fmean(group) for group in groups])
    assert ours == pytest.approx(theirs * math.sqrt(len(groups) / (len(groups) - 1)))


def test_a_share_has_wilsons_interval_also_where_no_problem_was_solved() -> None:
    """0 of 20 and 10 of 20: Wilson 1927; of the latter a little more, as the spread is estimated."""
    none = share_interval([0.0] * 20)
    assert (none.low, none.high) == (0.0, pytest.approx(0.1611, abs=1e-4))
    half = share_interval([1.0, 0.0] * 10)
    assert (half.low, half.high) == (pytest.approx(0.2993, abs=5e-3), pytest.approx(0.7007, abs=5e-3))
    alike = share_interval([0.5] * 20)
    assert alike.high - alike.low == pytest.approx(half.high - half.low, abs=0.02)


def test_rollouts_of_one_problem_are_not_taken_for_independent() -> None:
    """20 problems, of 8 equal rollouts each, tell no more than 20 rollouts."""
    assert share_interval([1.0, 0.0] * 10) == share_interval([statistics.fmean([v] * 8) for v in [1.0, 0.0] * 10])


def test_a_paired_difference_has_students_interval() -> None:
    found = paired_interval([0.5, 0.0, 0.25, 0.25])
    assert found.mean == 0.25
    assert found.high - found.mean == pytest.approx(3.1824 * statistics.stdev([0.5, 0, 0.25, 0.25]) / 2)
    assert paired_interval([1.0]).low == -math.inf


def test_969_problems_show_three_points_where_the_difference_varies_by_a_third() -> None:
    """((1.960 + .842) / .03)² / 9: the example of Miller 2024, section 5."""
    assert problems_needed(1 / 3, 0.03) == 969


@pytest.mark.parametrize(
    ("answers", "right", "share"),
    [
        (["4", "4", "5"], [True, True, False], 1.0),
        (["4", "5", "5"], [True, False, False], 0.0),
        (["4", "5"], [True, False], 0.5),
        (["4", None, None, None], [True, False, False, False], 1.0),
        ([None, None], [False, False], 0.0),
    ],
)
def test_the_most_frequent_answer_wins(answers: list[str | None], right: list[bool], share: float) -> None:
    assert majority(answers, right) == share


def rollout(task: str, index: int, *, right: bool, answer: str = "", failed: int = 0) -> Trajectory:
    """One with a call that worked and `failed` that did not, of 3 tokens each, and an answer of 2."""
    turns = [
        Turn(
            (Segment("sampled", "abc", (1, 2, 3)), Segment("observation", "x", (4,))),
            (ToolCall(f"c{n}", "python", {"code": "1"}, 0),),
            (Observation(f"c{n}", "x", "error" if n < failed else "ok", seconds=0.5),),
            "call",
        )
        for n in range(failed + 1)
    ]
    said = answer or ("4" if right else "5")
    last = Turn((Segment("sampled", said, (5, 6)),))
    prompt = (Segment("prompt", "p", tuple(range(10))),)
    return Trajectory(f"{task}-{index}", task, prompt, (*turns, last), reward=1.0 if right else -1.0, answer=said)


def evaluated(folder: Path, passes: Sequence[Sequence[bool]], *, failed: int = 0, tools: str = "python") -> Path:
    groups = [
        (f"t/{n}", [rollout(f"t/{n}", i, right=right, failed=failed) for i, right in enumerate(rights)])
        for n, rights in enumerate(passes)
    ]
    seconds = {task: 2.0 for task, _ in groups}
    setting = score(groups, temperature=1.0, top_p=0.6, cpu_s=3.0, wall_s=4.0, seconds=seconds)
    recipe: dict[str, dict[str, object]] = {
        "rollout": {"tools": [tools] if tools else [], "max_tokens": 100, "max_turns": 5},
        "evaluate": {"repair": "none", "samples": len(passes[0]), "seed": 1},
    }
    about = {
        "benchmark": {"name": "sums", "hub": "me/sums"},
        "graders": {"math": {"retcon-rl": "0"}},
        "protocol": "cleaner",
    }
    result = Result("model", recipe, {}, inputs={"problems": "x"}, about=about).with_setting("rollout", setting)
    folder.mkdir(parents=True)
    write_result(folder / "result.json", result)
    write_card(folder, result)
    return folder


def test_a_card_says_the_protocol_and_every_figure(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "a", [[True, True, False], [False, False, False]], failed=1)
    card = json.loads((folder / "card.json").read_text())
    assert (card["tools"], card["purification"], card["rollouts"]) == (["python"], "none", 3)
    assert (card["benchmark"]["name"], card["graders"]) == ("sums", {"math": {"retcon-rl": "0"}})
    figures = card["settings"]["rollout"]
    assert figures["sampling"] == {"temperature": 1.0, "top_p": 0.6}
    assert figures["pass@1"]["mean"] == pytest.approx(1 / 3)
    assert figures["pass@2"]["mean"] == 0.5
    assert figures["majority"]["mean"] == 0.5
    assert (figures["calls"]["mean"], figures["failed_calls"]["mean"], figures["tokens"]["mean"]) == (2, 1, 8)
    assert figures["prompt_tokens"]["mean"] == 10 + 14 + 18  # each turn reads all before it
    assert card["cost"]["rollout"] == {"wall_s": 4.0, "cpu_s": 3.0, "tool_s": 6.0}
    shown = (folder / "card.md").read_text()
    assert "# model on sums" in shown
    assert "| pass@1 | 0.3333 |" in shown
    assert "| settings | cleaner |\n| tools | python |" in shown


def test_judges_have_a_pass_rate_each_and_the_problems_on_which_they_differ() -> None:
    def judged(task: str, lcb: bool, strict: bool) -> Trajectory:
        return replace(rollout(task, 0, right=lcb), grades={"lcb": lcb, "strict": strict})

    groups = [("t/0", [judged("t/0", True, True)]), ("t/1", [judged("t/1", True, False)])]
    setting = score(groups, temperature=1.0, top_p=1.0, cpu_s=0, wall_s=0)
    figures = card_of(Result("model", {}, {}).with_setting("rollout", setting))["settings"]["rollout"]
    assert (figures["pass@1 (lcb)"]["mean"], figures["pass@1 (strict)"]["mean"]) == (1.0, 0.5)
    assert figures["judges differ on"] == ["t/1"]


def test_two_evaluations_are_compared_by_problem_with_what_differs(tmp_path: Path) -> None:
    off = evaluated(tmp_path / "off" / "sums", [[True, False], [False, False], [True, True], [False, False]], tools="")
    on = evaluated(tmp_path / "on" / "sums", [[True, True], [False, True], [True, True], [False, False]], failed=1)
    (found,) = compare_evaluations(off.parent, on.parent, price=(1e6, 0.0))
    assert (found.problems, found.better, found.worse) == (4, 2, 0)
    assert found.figures["avg@k"][2] == paired_interval([0.5, 0.5, 0.0, 0.0])
    assert found.figures["failed_calls"][:2] == (0, 1)
    assert found.figures["cost ($)"][:2] == (10 + 14, 10 + 14 + 18)
    assert found.figures["seconds"][:2] == (2.0, 2.0)
    assert found.needed == problems_needed(statistics.stdev([0.5, 0.5, 0, 0]), 0.03)
    assert found.protocol["tools"] == ([], ["python"])


def test_what_cannot_be_compared_is_a_sentence(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "a" / "x", [[True]])
    two = evaluated(tmp_path / "b" / "y", [[True]])
    evaluated(tmp_path / "b" / "z", [[True]])
    assert next(iter(compare_evaluations(one, two))).needed is None
    with pytest.raises(CheckpointError, match=r"has x, and .* y, z: no name is in both"):
        next(iter(compare_evaluations(one.parent, two.parent)))
    with pytest.raises(CheckpointError, match=r"has no evaluation's result\.json"):
        evaluations_in(tmp_path / "none")


def test_results_of_earlier_versions_have_a_card_too() -> None:
    old = Result("model", {}, {}).with_setting("t1", score([], temperature=1, top_p=1, cpu_s=0, wall_s=0))
    assert card_of(old)["settings"]["t1"]["problems"] == 0
