"""Which mechanisms of a recipe never acted, by the metrics that count them, and what becomes of each rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import Chosen, Section
from retcon.core.types import Segment, Trajectory, Turn
from retcon.runs.metrics import idle_mechanisms, mechanisms_of
from retcon.train.objective.shaping import overlong_metrics
from retcon.train.prompts import Drawn, selected, selection_metrics

PAGE = Path(__file__).parents[3] / "docs" / "training" / "tracking.md"


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate(sections)


def kinds() -> list[tuple[str, type[Section]]]:
    """Every section by its name, in each of its kinds."""
    found: list[tuple[str, type[Section]]] = []
    for name, section in SECTIONS.items():
        chosen = [section.kinds.find(kind) for kind in section.kinds.names] if issubclass(section, Chosen) else []
        found += [(name, kind) for kind in chosen or [section]]
    return found


def test_mechanisms_are_of_keys_and_documented_with_their_metrics() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    declared = {(name, key, *metrics) for name, kind in kinds() for key, (_, *metrics) in kind.mechanisms.items()}
    assert len(declared) > 15
    for name, key, *metrics in declared:
        assert any(key in kind.model_fields for section, kind in kinds() if section == name)
        row = " ".join(line for line in rows if line.startswith(f"| `{name}.{key}`"))
        assert all(f"`{metric}`" in row for metric in metrics), (name, key, row)


def test_a_recipe_has_the_mechanisms_that_it_switches_on() -> None:
    assert set(mechanisms_of(recipe())) == set()
    rl = {"dual_clip": 3.0, "void_turns": "mask", "truncated": "keep", "max_kl": 0.0}
    on = mechanisms_of(recipe(rl=rl, select={"kind": "roc", "dynamic": True}, repair={"kind": "saar"}))
    assert set(on) == {
        "rl.dual_clip=3.0", "rl.void_turns=mask", "select.kind=roc", "select.dynamic=true", "repair.kind=saar",
    }  # fmt: skip
    assert on["rl.dual_clip=3.0"][1:] == ("dual_clip_tokens",)
    assert set(mechanisms_of(recipe(strategy={"kind": "arpo"}))) == {"strategy.kind=arpo"}
    assert not mechanisms_of(recipe(rl={"algorithm": "gspo"})), "it has no dual clip"


def test_a_mechanism_that_never_acted_is_named_with_its_steps() -> None:
    one = recipe(rl={"dual_clip": 3.0}, select={"dynamic": True})
    idle = {"dual_clip_tokens": 0, "groups_flat": 0, "extra_groups": 0}
    assert idle_mechanisms(one, [idle, idle]) == [
        "select.dynamic=true never acted in 2 steps: the rewards of every group differed",
        "rl.dual_clip=3.0 never acted in 2 steps: no token of negative advantage had a ratio above it",
    ]
    (line,) = idle_mechanisms(one, [idle, {**idle, "dual_clip_tokens": 1, "groups_flat": None}])
    assert line.startswith("select.dynamic=true never acted in 2 steps")
    assert idle_mechanisms(one, [{**idle, "dual_clip_tokens": 1, "extra_groups": 2}]) == []
    assert idle_mechanisms(one, [{"loss": 0.5}]) == [], "an older version counted nothing"


def test_a_mechanism_of_one_stage_is_judged_by_the_steps_of_that_stage() -> None:
    stages = [{"name": "one", "steps": 1}, {"name": "two", "steps": 2, "rl": {"mask_negative_spliced": True}}]
    staged = recipe(rl={"steps": 3}, stages=stages)
    lines = [{"stage": stage, "spliced_negative": share} for stage, share in ((1, 0.5), (2, 0.0), (2, None))]
    assert idle_mechanisms(staged, lines) == [
        "rl.mask_negative_spliced=true never acted in 2 steps: no spliced token had a negative advantage"
    ]
    assert idle_mechanisms(staged, [*lines, {"stage": 2, "spliced_negative": 0.1}]) == []


def rollout(name: str, reward: float | None, stop: Any = "answer", *, answers: int = 1) -> Trajectory:
    """A right one has the larger penalty the more answers it gives."""
    turn = Turn((Segment("sampled", r"\boxed{1}" * answers, (1,) * 10, (-1.0,) * 10),), stop="answer")
    return Trajectory(name, "t", (Segment("prompt", "p", (1,)),), (turn,), reward, stop, answer="1")


def test_every_rollout_says_what_became_of_it() -> None:
    on = recipe(rl={"group": 2, "truncated": "mask"}, select={"kind": "roc", "dynamic": True})
    clean, tied, untidy = rollout("clean", 1.0), rollout("tied", 1.0), rollout("untidy", 1.0, answers=2)
    wrong, other = rollout("wrong", -1.0), rollout("other", -1.0)
    lost, cut = rollout("lost", None, "infrastructure"), rollout("cut", -1.0, "length")
    drawn = Drawn()
    drawn.add([clean, tied, untidy, wrong, other, lost, cut], [clean, wrong])
    drawn.add([clean, tied], [clean, tied])
    drawn.add([clean, lost], [])
    marks = [(t.id, t.selection) for t in selected(on, drawn)]
    assert marks == [
        ("clean", "kept"), ("tied", "drawn"), ("untidy", "penalty"), ("wrong", "kept"), ("other", "wrong"),
        ("lost", "infrastructure"), ("cut", "masked"), ("clean", "flat"), ("tied", "flat"), ("clean", "few"),
        ("lost", "infrastructure"),
    ]  # fmt: skip
    line = selection_metrics(on, drawn)
    assert (line["kept"], line["kept_right"], line["groups_drawn"], line["groups_kept"]) == (2, 1, 3, 1)
    assert [line[f"dropped_{reason}"] for reason in ("penalty", "drawn", "wrong")] == [1, 1, 1]
    assert line["truncated_masked"] == 1
    assert "void_masked" not in line


def test_a_selection_without_reasons_of_its_own_drops_by_selection() -> None:
    drawn = Drawn()
    drawn.add([rollout("a", 1.0), rollout("b", -1.0), rollout("c", -1.0)], [rollout("a", 1.0), rollout("b", -1.0)])
    plain = recipe(rl={"group": 2})
    assert [t.selection for t in selected(plain, drawn)] == ["kept", "kept", "selection"]
    assert not [name for name in selection_metrics(plain, drawn) if name.startswith("dropped_")]


def test_void_turns_that_are_masked_are_counted() -> None:
    void = Trajectory("void", "t", (), (Turn((), stop="length"),), -1.0, "length")
    drawn = Drawn()
    drawn.add([rollout("a", 1.0), rollout("b", -1.0), void], [rollout("a", 1.0), rollout("b", -1.0)])
    assert selection_metrics(recipe(rl={"void_turns": "mask"}), drawn)["void_masked"] == 1
    assert "void_masked" not in selection_metrics(recipe(), drawn)


@pytest.mark.parametrize(
    ("shaped", "found"),
    [([1.0, -1.0], (0, None)), ([1.0, -1.5], (1, 0.5)), ([0.75, -2.0], (2, 0.625))],
    ids=["none", "one", "two"],
)
def test_overlong_rollouts_are_counted_with_what_they_lost(shaped: list[float], found: tuple[int, float]) -> None:
    line = overlong_metrics([[rollout("a", 1.0), rollout("b", -1.0)]], [shaped])
    assert (line["overlong_rollouts"], line["overlong_penalty"]) == found
