"""Trackers: what they get, under which names, and that none of them can stop or slow a run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import MissingExtra, RecipeError, RecordError, TrackingWarning
from retcon.runs import tracking as module
from retcon.runs.folder import RunFolder
from retcon.runs.metrics import ALL, read_metrics, rename
from retcon.runs.tracking import TrackedRun, Tracker, find_trackers, tracking

PAGE = Path(__file__).parents[2] / "docs" / "training" / "tracking.md"


class Writes(Tracker):
    """Keeps what it gets, and the ids that it was made with."""

    lines: ClassVar[list[tuple[int, dict[str, float]]]] = []
    runs: ClassVar[list[TrackedRun]] = []
    closed: ClassVar[list[bool]] = []

    def __init__(self, run: TrackedRun) -> None:
        self.runs.append(run)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed.append(True)


class Breaks(Writes):
    """Its server is gone after the first step."""

    reached = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.reached.set()
        raise ConnectionError("the server is gone\nsecond line")


class Hangs(Writes):
    """Never comes back."""

    free = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.free.wait()


class NeedsMore(Writes):
    needs = ("json", "no_such_package_for_sure")


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    for kept in (Writes.lines, Writes.runs, Writes.closed):
        kept.clear()


def recipe(*to: str, names: str = "retcon") -> Recipe:
    return load_recipe(None, [f"track.to={list(to)!r}".replace("'", '"'), f"track.names={names}"])


def tell(recipe: Recipe, folder: Path, steps: int, between: Callable[[], object] = lambda: None) -> None:
    with tracking(recipe, folder) as track:
        for step in range(1, steps + 1):
            track({"step": step, "reward": 0.0})
            between()


def own(kind: type[Tracker]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def test_a_tracker_gets_every_step_without_what_has_no_value(tmp_path: Path) -> None:
    with tracking(recipe(own(Writes)), tmp_path) as track:
        for step in (3, 4):
            track({"step": step, "reward": 0.5, "score_mismatch": None})
    assert Writes.lines == [(3, {"reward": 0.5}), (4, {"reward": 0.5})]
    assert Writes.closed == [True]
    (run,) = Writes.runs
    assert (run.step, run.name, run.project, run.config["rl"]["steps"]) == (3, tmp_path.name, "retcon", 80)


def test_all_sessions_of_a_run_have_one_id(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        folder.mkdir(exist_ok=True)
        with tracking(recipe(own(Writes)), folder) as track:
            track({"step": 1, "reward": 0.0})
    first, again, other = (run.id for run in Writes.runs)
    assert first == again != other


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on(tmp_path: Path) -> None:
    Breaks.reached.clear()
    with pytest.warns(TrackingWarning) as said:
        tell(recipe(own(Breaks), own(Writes)), tmp_path, 5, lambda: Breaks.reached.wait(60))
    assert [step for step, _ in Writes.lines] == [1, 2, 3, 4, 5]
    (line,) = {str(warning.message) for warning in said}
    assert "Breaks failed" in line
    assert "ConnectionError: the server is gone;" in line
    assert "second line" not in line


def test_a_tracker_that_hangs_stops_neither_a_step_nor_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(module, "WAITING", 2)
    with pytest.warns(TrackingWarning, match="Hangs is 2 steps behind"):
        tell(recipe(own(Hangs)), tmp_path, 7)
    Hangs.free.set()


def test_one_that_is_not_installed_is_an_error_before_work_starts() -> None:
    with pytest.raises(MissingExtra, match="needs no_such_package_for_sure: pip install no_such_package_for_sure"):
        find_trackers(recipe(own(NeedsMore)).track)
    with pytest.raises(RecipeError, match=r"no tracker 'wanbd' \(did you mean 'wandb'\?\)"):
        find_trackers(recipe("wanbd").track)


def test_names_of_others_are_unique_and_the_rest_is_ours() -> None:
    for theirs in ([n.verl for n in ALL if n.verl], [n.trl for n in ALL if n.trl], [n.own for n in ALL]):
        assert len(set(theirs)) == len(theirs)
    metrics = {"reward": 1.0, "kl": 0.1, "spliced_share": 0.2}
    assert rename(metrics, "verl") == {"critic/score/mean": 1.0, "actor/ppo_kl": 0.1, "retcon/spliced_share": 0.2}
    assert rename(metrics, "trl") == {"reward": 1.0, "retcon/kl": 0.1, "retcon/spliced_share": 0.2}


def test_a_divergence_goes_by_the_name_of_one_to_the_same_policy() -> None:
    """To the one that sampled, or to the one that the run began from: TRL's kl is of the second kind alone."""
    metrics = {"kl": 0.1, "kl_reference": 0.2}
    assert rename(metrics, "trl") == {"retcon/kl": 0.1, "kl": 0.2}
    assert rename(metrics, "verl") == {"actor/ppo_kl": 0.1, "actor/kl_loss": 0.2}


def test_the_page_has_the_table_of_names() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    code = {one.own: (f"`{one.verl}`" if one.verl else "", f"`{one.trl}`" if one.trl else "", one.about) for one in ALL}
    assert {own: (verl, trl, about) for own, verl, trl, about in rows} == code


def test_a_metric_that_is_not_finite_leaves_the_run_readable(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log({"step": 1, "kl": float("inf"), "loss": 0.5})
    folder.log({"step": 2, "kl": float("nan"), "loss": None})
    assert folder.read_metrics() == [{"step": 1, "kl": None, "loss": 0.5}, {"step": 2, "kl": None, "loss": None}]


@pytest.mark.parametrize(
    "line", [b"\xff", b'{"step": 2, "x\xff": 1}', b'{"step": 2'], ids=["bytes", "a name", "cut off"]
)
def test_metrics_that_cannot_be_read_name_their_line_and_a_last_one_may_be_cut_off(tmp_path: Path, line: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.log({"step": 1})
    with folder.metrics.open("ab") as file:
        file.write(line + b"\n")
    assert folder.read_metrics() == [{"step": 1}]
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 2: not a step's metrics"):
        read_metrics(folder.metrics)
