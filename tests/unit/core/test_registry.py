"""What can be chosen by name: files of a folder, and import paths."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retcon.chat.family import named as chat_style
from retcon.config.schema import RepairSection, RLSection
from retcon.core.errors import RecipeError, RetconError
from retcon.core.registry import Registry, at_path, modules_of
from retcon.purify.kinds.saar import SaarSection
from retcon.tasks.data.rows import imported_tasks
from retcon.tools.loading import find_tools
from retcon.transcripts.registry import named as transcript_format

ANYTHING = """
from retcon.core.types import ToolSpec


class Anything:
    name, system = "anything", None
    spec = ToolSpec("anything", "", {"type": "object", "properties": {}})
    find_calls = train = evaluation = grade = None

    async def __call__(self):
        pass


MINE = Anything()
"""


def test_names_are_those_of_files_and_nothing_is_imported_for_them() -> None:
    module = "retcon.train.algorithms.grpo"
    known = sys.modules.pop(module, None)
    try:
        assert Registry("algorithm", "retcon.train.algorithms", RLSection).names[:3] == ("aepo", "cispo", "dapo")
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "sar",
            r"no repair 'sar' \(did you mean 'saar'\?\); there are: branch, describe, none, saar, .*my_module:MyRepair",
        ),
        ("os:path", "repair 'os:path' is not a subclass of retcon.config.schema.RepairSection"),
        ("os:nothing", "repair 'os:nothing' cannot be imported: .*nothing"),
        ("os.nothing:X", "repair 'os.nothing:X' cannot be imported"),
        ("os:path:X", "repair 'os:path:X' cannot be imported: os has no 'path:X'"),
    ],
)
def test_what_cannot_be_found_is_named(name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        RepairSection.kinds.find(name)


@pytest.mark.parametrize(
    "find", [chat_style, transcript_format, imported_tasks, lambda path: find_tools([path])[0].tool]
)
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


def test_what_lies_in_that_folder_takes_the_place_of_nothing_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file there may have the name of a package that is needed later."""
    (tmp_path / "lies_there.py").write_text("MINE = 1")
    monkeypatch.chdir(tmp_path)
    before = [path for path in sys.path if path]
    monkeypatch.setattr(sys, "path", list(before))
    monkeypatch.delitem(sys.modules, "lies_there", raising=False)
    try:
        assert at_path("lies_there:MINE") == 1
    finally:
        sys.modules.pop("lies_there", None)
    assert sys.path == [*before, str(tmp_path)]
    assert at_path("json:dumps.__name__") == "dumps"
    assert sys.path == [*before, str(tmp_path)]
    sys.path[:] = before
    (tmp_path / "json").mkdir()
    assert at_path("json:dumps.__name__") == "dumps"
    assert sys.path == before


def test_a_module_that_is_not_there_is_guessed_among_the_files_of_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tools.py").write_text("")
    (tmp_path / "my_toolz.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=r"No module named 'my_toolz' \(did you mean 'my_tools'\?\)"):
        at_path("my_toolz:MINE")


def test_a_module_of_a_package_may_lie_in_that_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies_deep").mkdir()
    (tmp_path / "lies_deep" / "inside.py").write_text("MINE = 2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    try:
        assert at_path("lies_deep.inside:MINE") == 2
    finally:
        sys.modules.pop("lies_deep.inside", None)
        sys.modules.pop("lies_deep", None)


def test_a_file_of_a_folder_must_define_one_class() -> None:
    with pytest.raises(RecipeError, match=r"retcon\.core\.seeds must define one subclass of RepairSection, not 0"):
        Registry("repair", "retcon.core", RepairSection).find("seeds")


def test_a_class_of_one_s_own_is_called_after_all_words_of_its_kind() -> None:
    with pytest.raises(RecipeError, match=r"such as my_package\.my_module:MyChatStyle$"):
        Registry("chat style", "retcon.core", RepairSection).find("none such")


def test_a_package_that_is_not_there_has_no_modules() -> None:
    assert modules_of("no_such_package") == ()


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
def test_a_module_that_breaks_while_it_is_imported_is_told_with_its_line(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks_here.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "breaks_here", raising=False)
    with pytest.raises(RecipeError, match=said):
        RepairSection.kinds.find("breaks_here:Mine")


@pytest.mark.parametrize("find", [imported_tasks, lambda path: find_tools([path])])
def test_a_class_that_breaks_while_it_is_made_is_told_with_its_line(
    find: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks_later.py").write_text(
        "class Mine:\n    def __init__(self):\n        raise OSError('no licence')\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "breaks_later", raising=False)
    with pytest.raises(RetconError, match=r"breaks_later:Mine.* OSError: no licence \(.*breaks_later\.py:3\)$"):
        find("breaks_later:Mine")
