"""What can be chosen by name: files of a folder, and import paths."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

from retcon.chat.family import FAMILIES
from retcon.config.load import load_recipe
from retcon.config.schema import RepairSection, RLSection, TaskSection
from retcon.core import registry
from retcon.core.errors import RecipeError, RetconError
from retcon.core.registry import FOLDERS, GROUP, Registry
from retcon.purify.kinds.saar import SaarSection
from retcon.tasks.data.rows import import_tasks
from retcon.tools.loading import find_tools
from retcon.transcripts.registry import find_formats

ANYTHING = """
from retcon.chat.families.harmony import Harmony
from retcon.core.types import ToolSpec


class Anything(Harmony):
    name, system, aliases = "anything", None, ()
    certainty, marks = 0, ()
    matches = read = clean = print
    spec = ToolSpec("anything", "", {"type": "object", "properties": {}})
    train = evaluation = grade = None

    async def __call__(self):
        pass


MINE = Anything()
"""


def test_names_are_those_of_files_and_nothing_is_imported_for_them() -> None:
    module = "retcon.train.algorithms.grpo"
    known = sys.modules.pop(module, None)
    try:
        assert Registry("algorithm", base=RLSection).names[:3] == ("aepo", "cispo", "dapo")
        assert module not in sys.modules
    finally:
        if known is not None:
            sys.modules[module] = known


def test_a_class_is_found_by_its_name_and_by_its_import_path_and_named_again() -> None:
    repairs = RepairSection.kinds
    assert repairs.find("saar") is SaarSection
    assert repairs.find("retcon.purify.kinds.saar:SaarSection") is SaarSection
    assert repairs.name_of(SaarSection) == "saar"
    assert repairs.name_of(type("Mine", (), {"__module__": "mine"})) == "mine:Mine"
    assert SaarSection().kind == "saar"


@pytest.mark.parametrize("find", [FAMILIES.find, find_formats, import_tasks, lambda path: find_tools([path])[0].tool])
def test_what_is_named_by_import_path_may_lie_in_the_folder_that_a_command_is_called_in(
    find: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a console script, unlike `python -m`, does not look."""
    (tmp_path / "lies_here.py").write_text(ANYTHING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "lies_here", raising=False)
    found = find("lies_here:MINE")
    assert (found[0] if isinstance(found, list) else found) is sys.modules["lies_here"].MINE


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package with entry points; its code is a module `of_<package>`."""

    def add(package: str, code: str, **points: str) -> None:
        (tmp_path / f"of_{package}.py").write_text(code)
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name.replace('__', '.')} = of_{package}{value}" for name, value in points.items()]
        (about / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
        invalidate_caches()
        registry._installed.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield add
    registry._installed.cache_clear()
    for path in tmp_path.glob("of_*.py"):
        sys.modules.pop(path.stem, None)


REPAIR = "from retcon.purify.kinds.none import *\nclass Once(RepairSection):\n    attempts: int = 1\n"


def test_an_installed_package_offers_plug_ins_by_name(install: Callable[..., None]) -> None:
    families = "from retcon.chat.families.qwen import FAMILY, replace\nMINE = replace(FAMILY, name='mine')\n"
    install("scratch", f"{REPAIR}\n{families}", repair__once=":Once", repair__same="", chat_family__mine=":MINE")
    assert RepairSection.kinds.names[-2:] == ("once", "same")
    once = RepairSection.kinds.find("once")
    assert once is RepairSection.kinds.find("same")
    assert load_recipe(None, ["repair.kind=once", "repair.attempts=3"]).repair == once(kind="once", attempts=3)
    assert dict(RepairSection.kinds.all())["once"] is once
    load_recipe(None, ["model.style=mine"])
    assert FAMILIES.find("mine").name == "mine"
    assert FAMILIES.find("mine") in FAMILIES.all()
    with pytest.raises(
        RecipeError, match=r"no repair 'onec' \(did you mean 'once'\?\); there are: branch, .*once, same"
    ):
        RepairSection.kinds.find("onec")


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({"repair__one": ":MINE"}, "repair 'one' is not a subclass of retcon.config.schema.RepairSection: it is int 1"),
        ({"repair__one": ":YOURS"}, r"repair 'one' \(of package wrong\) cannot be imported: of_wrong has no 'YOURS'"),
        ({"repair__one": "_gone"}, r"repair 'one' \(of package wrong\) cannot be imported: No module named"),
        ({"repair__one": ""}, r"of_wrong must define one subclass of retcon\.config\.schema\.RepairSection, not 0"),
        (
            {"repiar__one": ":MINE"},
            r"package wrong has the entry point 'repiar\.one' .*\(did you mean 'repair'",
        ),
        ({"one": ":MINE"}, "package wrong has the entry point 'one' .*it must be kind.name, such as repair.once"),
    ],
)
def test_a_wrong_entry_point_is_named_with_its_package(
    install: Callable[..., None], points: dict[str, str], said: str
) -> None:
    install("wrong", "MINE = 1", **points)
    with pytest.raises(RecipeError, match=said):
        RepairSection.kinds.find("one")


def test_a_name_that_two_packages_offer_is_refused_with_both(install: Callable[..., None]) -> None:
    install("first", REPAIR, repair__once=":Once")
    install("second", REPAIR, repair__once=":Once")
    with pytest.raises(RecipeError, match=r"repair 'once' is offered by (first and second|second and first)"):
        RepairSection.kinds.find("once")
    assert RepairSection.kinds.find("of_first:Once").__name__ == "Once"


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_kind_of_plug_in_stands_in_the_table_of_contributing_with_its_folder(kind: str) -> None:
    """The table shows what can be added, where, a file to start from and a test to copy."""
    root = Path(__file__).parents[3]
    (row,) = [line for line in (root / "CONTRIBUTING.md").read_text().splitlines() if line.startswith(f"| `{kind}` |")]
    files = re.findall(r"`(\S+\.py)`", row)
    assert any(f"retcon/{file}".startswith(FOLDERS[kind].replace(".", "/")) for file in files)
    assert [file for file in files if not ((root / "src/retcon" / file).is_file() or (root / file).is_file())] == []
    assert sum(file.startswith("tests/") for file in files) == 1


def test_what_a_row_of_contributing_asks_for_is_a_member_of_a_class_that_it_names() -> None:
    root = Path(__file__).parents[3]
    text = "\n".join(file.read_text(encoding="utf-8") for file in (root / "src/retcon").rglob("*.py"))
    found = re.findall(r"^class (\w+)\b(.*):\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    classes: dict[str, str] = defaultdict(str)
    for name, bases, body in found:  # of the same name, all of them
        classes[name] += f"{bases}\n{body}"
    rows = [row for row in (root / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if row[:3] == "| `"]
    wrong = []
    for row in rows:
        words = re.findall(r"`(?:async )?(\w+)[`(]", row.split("|")[2])
        named = [word for word in words if word[0].isupper()]
        for name in named:
            above = re.findall(r"^[(\[].*", classes[name], re.MULTILINE)
            named += [base for base in re.findall(r"\w+", " ".join(above)) if base in classes and base not in named]
        bodies = "".join(classes[name] for name in named)
        members = re.findall(r"^    (?:(?:async )?def )?(\w+)[(:]", bodies, re.MULTILINE)
        wrong += [word for word in words if word[0].islower() and word not in members]
    assert len(rows) == len(FOLDERS)
    assert wrong == []


def test_an_own_plug_in_s_example_is_called_after_all_words_of_its_kind() -> None:
    with pytest.raises(RecipeError, match=r"such as my_package\.my_module:MY_CHAT_FAMILY$"):
        FAMILIES.find("none such")
    with pytest.raises(RecipeError, match=r"such as my_package\.my_module:MyTaskFamily$"):
        TaskSection.kinds.find("none such")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def f(:\n", r"cannot be imported: SyntaxError: .*\(breaks_here\.py, line 1\)$"),
        ("import os\nKEY = os.environ['NO_SUCH_KEY']\n", r": KeyError: 'NO_SUCH_KEY' \(.*breaks_here\.py:2\)$"),
        ("\nraise OSError('no licence')\n", r": OSError: no licence \(.*breaks_here\.py:2\)$"),
        ("import sys\nsys.exit(0)\n", r": SystemExit: 0 \(.*breaks_here\.py:2\)$"),
        ("import no_such_module\n", r"No module named 'no_such_module' \(.*breaks_here\.py:1\)$"),
        ("from json import no_such_name\n", r"no_such_name.*\(.*breaks_here\.py:1\)$"),
    ],
)
def test_a_module_that_breaks_while_it_is_imported_is_reported_with_its_line(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks_here.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "breaks_here", raising=False)
    with pytest.raises(RecipeError, match=said):
        RepairSection.kinds.find("breaks_here:Mine")


@pytest.mark.parametrize("find", [import_tasks, lambda path: find_tools([path])])
def test_a_class_that_breaks_while_it_is_made_is_reported_with_its_line(
    find: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks_later.py").write_text(
        "class Mine:\n    def __init__(self):\n        raise OSError('no licence')\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "breaks_later", raising=False)
    with pytest.raises(RetconError, match=r"breaks_later:Mine.* OSError: no licence \(.*breaks_later\.py:3\)$"):
        find("breaks_later:Mine")
