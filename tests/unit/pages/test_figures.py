"""The tables of README and docs are those of the result files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))  # last: `sessions` is in both

from figures import FigureError, figure, find_outdated, find_stale, rendered  # noqa: E402
from parts.results import save  # noqa: E402

PAGE = "Before.\n\n<!-- figures: speed -->\nanything\n<!-- end of figures -->\n\nAfter.\n"


def test_readme_and_docs_show_what_the_result_files_say() -> None:
    assert [page.name for page in find_outdated(ROOT)] == [], "run `make figures`"


def test_every_table_and_every_result_is_shown_somewhere() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    tables = list((ROOT / "benchmarks" / "tables").rglob("*.md"))
    for table in tables:
        assert f"<!-- figures: {table.stem} -->" in pages
    text = "".join(table.read_text(encoding="utf-8") for table in tables)
    for result in (ROOT / "benchmarks" / "results").rglob("*.json"):
        assert f"{{{result.stem}." in text, result


def test_what_a_result_measures_is_there() -> None:
    """A file that was renamed would make it look up to date for ever."""
    for result in (ROOT / "benchmarks" / "results").rglob("*.json"):
        about = json.loads(result.read_text(encoding="utf-8"))["about"]
        gone = [measured for measured in about["measures"] if not (ROOT / measured).exists()]
        assert not gone, result


def test_a_result_of_rollouts_measures_the_tools_that_they_call_too() -> None:
    for result in (ROOT / "benchmarks" / "results").rglob("*.json"):
        measures = set(json.loads(result.read_text(encoding="utf-8"))["about"]["measures"])
        if "src/retcon/rollout" in measures:
            assert {"src/retcon/tools", "src/retcon/sandbox"} <= measures, result


def repository(tmp_path: Path, table: str, figures: dict[str, object]) -> Path:
    """A folder with a README, a table `speed` and a result `run`."""
    for name in ("benchmarks/results", "benchmarks/tables", "docs", "src"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "benchmarks/tables/speed.md").write_text(table)
    save(tmp_path / "benchmarks/results/run.json", figures, command="run.py", measures=["src"])
    return tmp_path


def test_a_page_follows_its_results(tmp_path: Path) -> None:
    root = repository(
        tmp_path, "| {run.rate.here:0} | {run.ratio:2} |\n", {"rate": {"here": 1234.6}, "ratio": [0.5, 0.25, 1.5]}
    )
    ((page, text),) = find_outdated(root).items()
    assert (
        text
        == "Before.\n\n<!-- figures: speed -->\n\n| 1,235 | .50 (.25…1.50) |\n\n<!-- end of figures -->\n\nAfter.\n"
    )
    page.write_text(text)
    assert find_outdated(root) == {}
    save(root / "benchmarks/results/run.json", {"rate": {"here": 9}, "ratio": [1, 1, 1]}, command="", measures=[])
    assert "| 9 | 1.00 (1.00…1.00) |" in find_outdated(root)[page]


def test_a_table_can_say_when_and_where_it_was_measured(tmp_path: Path) -> None:
    root = repository(tmp_path, "{run.about:when}", {})
    ((_, text),) = find_outdated(root).items()
    shown = r"^\*20\d\d-\d\d-\d\d, \d+ cores of .+ GPU, load \d+\.\d(; commit [0-9a-f]+\+?)?\*$"
    assert re.search(shown, text, re.MULTILINE)


def test_tables_of_texts_and_counts_are_written_as_markdown(tmp_path: Path) -> None:
    figures = {"found": {"head": ["", "a"], "rows": [["x", "1,000"], ["y", ""]]}, "by": {"end": 1200, "user": 3}}
    root = repository(tmp_path, "{run.found:rows}\n\n{run.by:counts}", figures)
    ((_, text),) = find_outdated(root).items()
    assert "|  | a |\n| --- | --- |\n| x | 1,000 |\n| y |  |\n\n`end` 1,200, `user` 3" in text


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("{run.rat:0}", r"speed.md: \{run.rat\}: there is no 'rat'; there are: rate, middle, about"),
        ("{runs.rate:0}", r"speed.md: \{runs.rate\}: there is no 'runs'; there are: run"),
        ("{run.middle.7:0}", r"there is no '7'"),
        ("{run.rate:x}", "'x' is no format; there are: a number of digits, rows, counts, arms, screen, when"),
    ],
)
def test_a_field_that_is_not_there_is_named(tmp_path: Path, table: str, complaint: str) -> None:
    root = repository(tmp_path, table, {"rate": 1, "middle": [1, 2]})
    with pytest.raises(FigureError, match=complaint):
        find_outdated(root)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.md").touch()
    with pytest.raises(FigureError, match="there is no table 'speed'; there are: other"):
        rendered(PAGE, tmp_path, {})


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.5, 2, ".50"),
        (12345, 0, "12,345"),
        ([1, 0.5, 2], 1, "1.0 (.5…2.0)"),
        ({"mean": 0.81, "low": 0.79, "high": 0.83}, 3, ".810 [.790–.830]"),
        (None, 2, "–"),
    ],
)
def test_figures_are_written_in_one_way(value: object, digits: int, text: str) -> None:
    assert figure(value, digits) == text


def test_the_best_arm_of_each_figure_is_bold(tmp_path: Path) -> None:
    def one(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 0.125, "high": mean + 0.125}

    arms = {"a": {"pass1_t1": one(0.5), "tokens": one(9)}, "b": {"pass1_t1": one(0.25), "tokens": one(7)}}
    root = repository(tmp_path, "{run.summary:arms}", {"summary": {"arms": arms}})
    ((_, text),) = find_outdated(root).items()
    assert "| | a | b |\n|---|---|---|\n" in text
    assert "| pass@1, T = 1 | **.500** [.375–.625] | .250 [.125–.375] |\n" in text
    assert "| tokens, T = 1 | 9 [9–9] | **7** [7–7] |\n" in text


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_results_older_than_their_code_are_listed(tmp_path: Path) -> None:
    root = repository(tmp_path, "{run.rate:0}", {"rate": 1})

    def git(*words: str) -> str:
        names = ("-c", "user.name=t", "-c", "user.email=t@t")
        return subprocess.run(
            ["git", *names, *words], cwd=root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(change: str) -> str:
        (root / change).write_text(change)
        git("add", "-A")
        git("commit", "-m", change)
        return git("rev-parse", "--short", "HEAD")

    git("init", "-q")
    measured = commit("src/a.py")
    file = root / "benchmarks/results/run.json"
    result = json.loads(file.read_text())
    file.write_text(json.dumps({**result, "about": {**result["about"], "commit": measured}}))
    commit("docs/b.md")
    assert find_stale(root) == [], "what changed is not what it measures"
    commit("src/c.py")
    (line,) = find_stale(root)
    assert line.startswith("run (of 20")
    assert line.endswith(": 1 commit since; again with: run.py")
