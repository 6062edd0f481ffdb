"""Files beside their place until they are whole: one process at a time writes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import RecordError
from retcon.store import lines as module
from retcon.store.lines import Partial
from retcon.train.demos.making import FileJournal


@pytest.mark.parametrize("size", [None, 2])
def test_what_another_command_is_writing_is_left_alone(tmp_path: Path, size: int | None) -> None:
    first = Partial(tmp_path / "out.jsonl")
    first.out.write(b"{}\n")
    first.out.flush()
    with pytest.raises(RecordError, match=r"another command is writing .*out\.jsonl\.partial"):
        Partial(tmp_path / "out.jsonl", size)
    first.commit()
    assert (tmp_path / "out.jsonl").read_bytes() == b"{}\n"
    again = Partial(tmp_path / "out.jsonl")
    again.out.write(b"[]\n")
    again.commit()
    assert (tmp_path / "out.jsonl").read_bytes() == b"[]\n"


def test_what_another_command_finishes_at_that_moment_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened before it was put in its place, locked after."""
    path = tmp_path / "out.jsonl"
    first = Partial(path)
    first.out.write(b"{}\n")
    taken = module.taken

    def late(file: object) -> bool:
        first.commit()
        return taken(file)

    monkeypatch.setattr(module, "taken", late)
    with pytest.raises(RecordError, match="another command is writing"):
        Partial(path)
    assert path.read_bytes() == b"{}\n"


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_what_is_finished_is_nobody_elses_until_it_is_in_its_place(tmp_path: Path, name: str) -> None:
    """One of several, of which all are finished before the first is put in its place."""
    path = tmp_path / name
    first = Partial(path)
    first.out.write(b"{}\n" * 9)
    size = first.finish()
    with pytest.raises(RecordError, match="another command is writing"):
        Partial(path)
    first.commit()
    assert path.stat().st_size == size > 0
    Partial(path).discard()


def test_what_an_interrupted_command_left_is_begun_anew_or_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    left = path.with_name("out.jsonl.partial")
    left.write_bytes(b"1\n2\n3\n")
    on = Partial(path, 4)
    on.out.write(b"9\n")
    on.pause()
    assert left.read_bytes() == b"1\n2\n9\n"
    anew = Partial(path)
    anew.out.write(b"0\n")
    anew.commit()
    assert path.read_bytes() == b"0\n"


def test_a_journal_of_demonstrations_is_nobody_elses_to_begin_anew(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with FileJournal(file, {"run": {"seed": 0}}, load_recipe(None)):
        pass
    left = file.with_name("out.jsonl.partial")
    made = left.read_bytes()
    with pytest.raises(RecordError, match=r"out\.jsonl\.partial is what `retcon demos … --out .*out\.jsonl` had made"):
        Partial(file)
    assert left.read_bytes() == made
    left.unlink()
    Partial(file).discard()
