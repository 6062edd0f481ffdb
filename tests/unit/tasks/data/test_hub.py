"""Data sets of the Hugging Face hub, as the `datasets` package would give them."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from datafiles import questions, write
from retcon.cli.app import app
from retcon.core.errors import MissingExtra, TaskWarning
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks


def opened(path: str, **settings: Any) -> DataTasks:
    return FileTaskSettings(path=path, **settings).open()


class FakeHub(types.ModuleType):
    """What Retcon asks of the `datasets` package."""

    def __init__(self, error: Exception | None = None, subsets: Sequence[str] = ()) -> None:
        super().__init__("datasets")
        self.error, self.subsets = error, subsets
        self.asked: list[tuple[str, str | None, str | None]] = []

    def load_dataset(self, id: str, name: str | None = None, *, revision: str | None = None) -> dict[str, Any]:
        self.asked.append((id, name, revision))
        if self.error is not None:
            raise self.error
        if self.subsets and name not in self.subsets:
            raise ValueError(f"Config name is missing.\nPlease pick one: {self.subsets}")
        return {"train": questions(4)[:3], "test": questions(4)[3:]}

    def get_dataset_config_names(self, id: str, *, revision: str | None = None) -> Sequence[str]:
        if isinstance(self.error, ConnectionError):
            raise self.error
        return self.subsets


def test_a_data_set_of_the_hub_is_loaded_with_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = opened("openai/gsm8k", subset="main", revision="abc", evaluation_split="test")
    assert hub.asked[0] == ("openai/gsm8k", "main", "abc")
    assert (len(list(found.train(0))), [t.answer for t in found.evaluation(9, 0)]) == (3, ["6"])
    with pytest.raises(DataError, match=r"has no split 'trian' \(did you mean 'train'\?\); there are: train, test"):
        opened("openai/gsm8k", split="trian")


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach it"), TimeoutError("slow")])
def test_a_hub_that_is_out_of_reach_is_reported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(error))
    with pytest.raises(DataError, match=r"openai/gsm8k at revision x cannot be loaded without the hub .*give its path"):
        opened("openai/gsm8k", revision="x")
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(ValueError("Damaged.\n Again?")))
    with pytest.raises(DataError, match=r"openai/gsm8k cannot be loaded: Damaged\. Again\?"):
        opened("openai/gsm8k")


def test_without_the_datasets_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingExtra, match=r"openai/gsm8k is not a file here.*pip install datasets, or download a file"
    ):
        opened("openai/gsm8k")


@pytest.mark.parametrize(
    ("subset", "said"),
    [
        ("", r"openai/gsm8k comes in several subsets: name one by task\.subset \(.* --subset\): main, socratic"),
        ("mian", r"openai/gsm8k has no subset 'mian' \(did you mean 'main'\?\): name one by task\.subset .* socratic"),
    ],
)
def test_the_subsets_of_a_data_set_are_named(subset: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(subsets=("main", "socratic")))
    with pytest.raises(DataError, match=said):
        opened("openai/gsm8k", subset=subset)


@pytest.mark.parametrize("key", ["subset", "revision"])
def test_what_is_said_of_a_data_set_of_the_hub_is_told_where_there_is_none(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeHub())
    path = write(tmp_path / "a.jsonl", [{**row, "question": f"{row['question']}!"} for row in questions(9)])
    told = rf"task\.{key} = 'v2' \(of `retcon data`: --{key}\) does nothing: {path} is no data set of the hub"
    with pytest.warns(TaskWarning, match=told):
        opened(path, **{key: "v2"})
    with pytest.warns(TaskWarning, match=told):
        FileTaskSettings(sources=[{"path": path, key: "v2"}, "openai/gsm8k"]).open()
    for about in ({"path": path, "evaluation_path": "openai/gsm8k"}, {"sources": [path, "openai/gsm8k"]}):
        FileTaskSettings(**about, **{key: "v2"}, overlap="allow").open()  # of one of them it says something


def test_data_check_and_export_take_subset_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(subsets=("main", "socratic"))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    about = ["openai/gsm8k", "--subset", "main", "--revision", "v2", "--split", "train"]
    out = str(tmp_path / "a.parquet")
    for words in (["check", "--grader", "exact"], ["export", "--verl", out]):
        pytest.importorskip("pyarrow" if "export" in words else "typer", reason="Parquet needs the extra [formats]")
        done = CliRunner().invoke(app, ["data", *words, *about])
        assert done.exit_code == 0, (done.output, done.exception)
        assert hub.asked.pop() == ("openai/gsm8k", "main", "v2")
