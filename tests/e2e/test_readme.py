"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs_and_says_what_the_readme_says() -> None:
    (program,) = re.findall(r"```python\nimport.*?\n```\n", README.read_text(encoding="utf-8"), re.DOTALL)
    program = program.removeprefix("```python\n").removesuffix("\n```\n")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": "src"}
    )
    assert done.returncode == 0, done.stderr
    history, _, record = done.stdout.partition("RepairRecord(")
    assert "import math" in history
    assert "NameError" not in history
    assert "decision='shallow'" in record
    assert "NameError" in record


def test_every_room_of_the_architecture_page_is_there_and_none_is_left_out() -> None:
    page = (README.parent / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    rooms = (README.parent / "src/retcon").iterdir()
    there = {room.name for room in rooms if room.suffix == ".py" or (room / "__init__.py").exists()}
    assert named == there - {"__init__.py", "__main__.py"}


def test_every_link_leads_somewhere() -> None:
    pages = [README, *(README.parent / "docs").glob("*.md"), *README.parent.glob("CONTRIBUTING.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
