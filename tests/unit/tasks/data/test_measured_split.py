"""Which split of a data set a model is measured on, where nobody names one."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from datafiles import questions
from retcon.core.errors import TaskWarning
from retcon.tasks.data.settings import FileTaskSettings


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sequence[str]:
    """The splits of a data set of the hub: the n-th has the problem `n plus n` alone."""
    names: Sequence[str] = request.param
    package = types.ModuleType("datasets")

    def load_dataset(id: str, name: str | None = None, *, revision: str | None = None) -> dict[str, Any]:
        return {split: [questions(len(names))[n]] for n, split in enumerate(names)}

    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return names


def measured(**settings: Any) -> list[str]:
    """The answers of the problems, of which none is for training, as of `retcon eval --data`."""
    tasks = FileTaskSettings(path="openai/gsm8k", evaluation_share=1, **settings).open()
    assert not list(tasks.train(0))
    return [task.answer for task in tasks.evaluation(9, 0)]


@pytest.mark.parametrize(
    ("hub", "split"),
    [
        (("train", "test"), "test"),
        (("train", "validation", "test"), "test"),
        (("validation", "train"), "validation"),
        (("train", "dev"), "train"),
    ],
    indirect=["hub"],
)
def test_it_is_the_one_that_is_made_for_it_and_is_told(hub: Sequence[str], split: str) -> None:
    told = rf"openai/gsm8k: its split '{split}' is evaluated on, of {', '.join(hub)}: task.split names another"
    with pytest.warns(TaskWarning, match=told):
        assert measured() == [str(2 * hub.index(split))]


@pytest.mark.parametrize("hub", [("train",), ("test",)], indirect=True)
def test_a_single_split_is_taken_as_it_is(hub: Sequence[str]) -> None:
    assert measured() == ["0"]


@pytest.mark.parametrize("hub", [("train", "test")], indirect=True)
def test_one_that_is_named_counts_and_training_is_on_the_one_for_training(hub: Sequence[str]) -> None:
    assert measured(split="train") == ["0"]
    tasks = FileTaskSettings(path="openai/gsm8k", evaluation_share=0).open()
    assert [task.answer for task in tasks.train(0)] == ["0"]


@pytest.mark.parametrize("hub", [("train", "test")], indirect=True)
def test_the_manifest_says_which(hub: Sequence[str], tmp_path: Path) -> None:
    with pytest.warns(TaskWarning):
        tasks = FileTaskSettings(path="openai/gsm8k", evaluation_share=1).open()
    assert tasks.identity["sources"][0]["split"] == "test"
