"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs_and_says_what_the_readme_says() -> None:
    (program,) = re.findall(r"```python\nimport.*?\n```\n\n## ", README.read_text(encoding="utf-8"), re.DOTALL)
    program = program.removeprefix("```python\n").rpartition("\n```\n")[0]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": "src"}
    )
    assert done.returncode == 0, done.stderr
    history, _, record = done.stdout.partition("RepairRecord(")
    assert "import math" in history
    assert "NameError" not in history
    assert "decision='shallow'" in record
    assert "NameError" in record


def test_every_path_that_the_tree_names_is_there() -> None:
    tree = README.read_text(encoding="utf-8").split("## The house")[1].split("core \u2190")[0]
    names = re.findall(r"^ {4,6}(\S+/) ", tree, re.MULTILINE)
    assert len(names) > 15
    for name in names:
        assert any((README.parent / base / name).is_dir() for base in ("", "src/retcon")), name
