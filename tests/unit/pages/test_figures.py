"""The tables of README and docs are those of the result files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))  # last: `sessions` is in both

from figures import find_outdated  # noqa: E402
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
