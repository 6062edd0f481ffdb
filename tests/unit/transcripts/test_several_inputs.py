"""Several files at once: what they become together, and those among them that cannot be read."""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from typer.testing import CliRunner

from foreign import answer, fails, markdown, messages, user, works
from retcon.cli.app import app
from retcon.core.errors import MissingExtra, RecordError
from retcon.purify.offline import Repairer
from retcon.store.records import expand
from retcon.transcripts.purification import Assignment, FileJob, JobStopped, write_report
from retcon.transcripts.purifier import Count

CLEAN = messages((user("?"), works("x = 1"), answer("1")))
LEFT = messages((user("?"), fails("f(2)"), answer("no")))


def written(folder: Path, **files: Sequence[object]) -> list[Path]:
    """Files in their order: those called `lines…` as JSON Lines, `array…` as an array, a `document` as one record."""
    paths: list[Path] = []
    for name, records in files.items():
        each = [json.dumps(record) for record in records]
        kind = name.rstrip("0123456789")
        text = {"lines": "\n".join(each) + "\n", "array": f"[{', '.join(each)}]\n", "document": "".join(each) + "\n"}
        paths.append(folder / f"{name}.{'jsonl' if kind == 'lines' else 'json'}")
        paths[-1].write_text(text[kind])
    return paths


def assignment(inputs: Sequence[Path], out: Path, *, into_folder: bool = False, **options: Any) -> Assignment:
    return Assignment(inputs, out, into_folder, [path.name for path in inputs], Repairer(), **options)


def purified(one: Assignment, *, resume: bool = False, stop_after: int | None = None) -> list[Count]:
    asked = itertools.count(1)
    return FileJob(one, resume=resume)(lambda *_: None, lambda: next(asked) == stop_after)


def parsed(path: Path) -> list[Any]:
    text = path.read_text()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def question(text: str) -> Any:
    return messages((user(text), works("x = 1"), answer("1")))


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "now", [("zero", "one", "two", "three"), ("other", "two", "three"), ("ond", "two", "three"), ()], ids="-".join
)
def test_a_run_is_not_resumed_where_what_it_has_read_has_changed(
    tmp_path: Path, now: tuple[str, ...], jobs: int
) -> None:
    (source,) = written(tmp_path, lines=list(map(question, ("one", "two", "three"))))
    one = assignment([source], tmp_path / "out.jsonl", jobs=jobs)
    with pytest.raises(JobStopped):
        purified(one, stop_after=1)
    kept, state = (tmp_path / "out.jsonl.partial").read_bytes(), one.state_path.read_bytes()
    written(tmp_path, lines=list(map(question, now)))
    if not now:
        source.unlink()
    with pytest.raises(RecordError, match="record 1 is not what the interrupted run" if now else "does not exist"):
        purified(one, resume=True)
    assert ((tmp_path / "out.jsonl.partial").read_bytes(), one.state_path.read_bytes()) == (kept, state)
    written(tmp_path, lines=list(map(question, ("one", "2", "3", "4"))))  # what comes after it may be mended
    purified(one, resume=True)
    assert parsed(one.out) == list(map(question, ("one", "2", "3", "4")))


def test_a_run_is_not_resumed_where_a_file_that_is_done_has_changed_or_its_own_is_gone(tmp_path: Path) -> None:
    inputs = written(tmp_path, lines1=[CLEAN], lines2=list(map(question, ("one", "two"))))
    one = assignment(inputs, tmp_path / "out.jsonl")
    with pytest.raises(JobStopped):
        purified(one, stop_after=2)
    state = one.state_path.read_bytes()
    for path, changed, message in ((0, b"{}\n", "when the interrupted run read it"), (1, None, "does not exist"),
                                   (1, b"\n", "record 1 is not")):  # fmt: skip
        before = inputs[path].read_bytes()
        inputs[path].unlink() if changed is None else inputs[path].write_bytes(changed)
        with pytest.raises(RecordError, match=message):
            purified(one, resume=True)
        assert one.state_path.read_bytes() == state
        inputs[path].write_bytes(before)
    purified(one, resume=True)
    assert parsed(one.out) == [CLEAN, *map(question, ("one", "two"))]


@pytest.mark.parametrize("name", ["out.jsonl", "out.ndjson", "out.ndjson.gz"])
def test_a_name_that_says_lines_gets_lines_whatever_the_input_was(tmp_path: Path, name: str) -> None:
    (array, document) = written(tmp_path, array=[CLEAN, CLEAN], document=[LEFT])
    for source, records in ((array, [CLEAN, CLEAN]), (document, [LEFT])):
        out = tmp_path / source.stem / name
        out.parent.mkdir()
        purified(assignment([source], out))
        made = gzip.decompress(out.read_bytes()) if name.endswith(".gz") else out.read_bytes()
        assert [json.loads(line) for line in made.splitlines()] == records
        purified(assignment([out], tmp_path / source.stem / "again.jsonl"))
        assert parsed(tmp_path / source.stem / "again.jsonl") == records


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_files_of_one_name_in_several_folders_have_ids_of_their_own_in_the_audit(tmp_path: Path, jobs: int) -> None:
    for folder in ("in/one", "in/two"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jsonl").write_text(json.dumps(LEFT) + "\n")
    inputs, names = zip(*expand([str(tmp_path / "in")]), strict=True)
    audit = tmp_path / "retcon.audit.jsonl"
    purified(Assignment(inputs, tmp_path / "out", True, names, Repairer(), audit=audit, jobs=jobs))
    assert [one["id"] for one in parsed(audit)] == ["one/a.jsonl:1", "two/a.jsonl:1"]
    audit.unlink()
    purified(assignment(inputs, tmp_path / "all.jsonl", audit=audit, jobs=jobs))
    assert [one["id"] for one in parsed(audit)] == [f"{path}:1" for path in inputs]


def test_two_files_that_would_be_one_of_a_folder_are_both_named(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(json.dumps(CLEAN) + "\n")
    done = CliRunner().invoke(app, ["purify", str(tmp_path / "one"), str(tmp_path / "two"), "-o", str(tmp_path / "o")])
    one, two, both = (tmp_path / name / "a.jsonl" for name in ("one", "two", "o"))
    assert f"{one} and {two} would both be {both}: give the folder" in str(done.exception)


def test_a_file_that_is_given_twice_for_a_folder_is_said_to_be_one(tmp_path: Path) -> None:
    (source := tmp_path / "a.jsonl").write_text(json.dumps(CLEAN) + "\n")
    for again in str(source), f"{tmp_path}/../{tmp_path.name}/a.jsonl", str(tmp_path):
        done = CliRunner().invoke(app, ["purify", str(source), again, "-o", str(tmp_path / "o/")])
        assert f"would both be {tmp_path}/o/a.jsonl: they are one file, give one of them" in str(done.exception)
        assert not (tmp_path / "o").exists()


def test_a_file_that_is_given_twice_is_not_written_twice_into_one(tmp_path: Path) -> None:
    (source := tmp_path / "a.jsonl").write_text(json.dumps(CLEAN) + "\n")
    (tmp_path / "latest.jsonl").symlink_to(source)
    for words in ([str(tmp_path)], [f"{tmp_path}/*.jsonl"], [str(source), f"{tmp_path}/../{tmp_path.name}/a.jsonl"]):
        done = CliRunner().invoke(app, ["purify", *words, "-o", str(tmp_path / "o.jsonl")])
        assert f"{source} and {tmp_path}/" in str(done.exception)
        assert "are one file, which would be in the output twice" in str(done.exception)
    assert CliRunner().invoke(app, ["purify", str(tmp_path), "-o", f"{tmp_path}/out/"]).exit_code == 0
    assert parsed(tmp_path / "out/latest.jsonl") == [CLEAN]


def test_what_lies_where_the_output_goes_and_was_not_made_of_the_rest_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a.jsonl", "out/a.jsonl", "out/raw.jsonl"):
        (tmp_path / name).write_text(json.dumps(CLEAN) + "\n")
    words = ["purify", str(tmp_path), "-o", str(tmp_path / "out"), "--force"]
    with pytest.warns(UserWarning, match=r"not read, as the output goes to .*out: 1 file there, such as .*raw\.jsonl$"):
        assert CliRunner().invoke(app, words).exit_code == 0
    (tmp_path / "out/raw.jsonl").unlink()
    assert CliRunner().invoke(app, words).exit_code == 0  # pytest makes a warning an error


@pytest.mark.parametrize("out", ["clean", "clean/", "below/clean/"])
def test_a_folder_below_the_one_that_is_read_is_resumed_and_made_anew_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    inputs = [tmp_path / "a.jsonl", tmp_path / "below" / "b.jsonl", tmp_path / "c.jsonl"]
    for number, path in enumerate(inputs):
        path.write_text(json.dumps(question(str(number))) + "\n")
    inputs[-1].write_text("nonsense\n")
    words = ["purify", ".", "-o", out]
    beside = ["--audit", "said.jsonl", "--report", "r.json", "--dpo", "pairs.jsonl"]
    assert "line 1: not JSON" in str(CliRunner().invoke(app, [*words, *beside]).exception)
    inputs[-1].write_text(json.dumps(question("mended")) + "\n")
    done = CliRunner().invoke(app, [*words, *beside, "--resume"])
    assert done.exit_code == 0, done.exception
    assert sorted(one["file"] for one in json.loads(Path("r.json").read_text())["files"]) == [
        "a.jsonl", "below/b.jsonl", "c.jsonl"
    ]  # fmt: skip
    for name in ("said.jsonl", "r.json", "pairs.jsonl"):
        Path(name).unlink()
    assert "is there already, and finished; --force" in str(CliRunner().invoke(app, words).exception)
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    made = {str(path.relative_to(out)): parsed(path) for path in Path(out).rglob("*.jsonl")}
    audit = made.pop("retcon.audit.jsonl")
    assert (audit, sorted(made)) == ([], ["a.jsonl", "below/b.jsonl", "c.jsonl"])
    assert made["c.jsonl"] == [question("mended")]


def test_a_folder_that_is_read_is_not_left_out_because_all_of_it_lies_below_the_output(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for folder in (tmp_path, tmp_path / "raw"):
        (folder / "a.jsonl").write_text(json.dumps(CLEAN) + "\n")
    for out in (tmp_path, tmp_path / "a.jsonl"):
        refused = CliRunner().invoke(app, ["purify", str(tmp_path), "-o", str(out), "--force"])
        assert "a.jsonl is an input too" in str(refused.exception)
    (tmp_path / "a.jsonl").unlink()
    assert CliRunner().invoke(app, ["purify", str(tmp_path / "raw"), "-o", str(tmp_path)]).exit_code == 0
    assert parsed(tmp_path / "a.jsonl") == [CLEAN]


def test_where_all_lies_in_the_output_folder_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.jsonl").write_text(json.dumps(CLEAN) + "\n")
    refused = CliRunner().invoke(app, ["purify", str(tmp_path), "-o", f"{tmp_path}/made"])
    assert str(refused.exception).endswith(f" or .pt, except in {tmp_path}/made, where the output goes")
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(app, ["purify", str(tmp_path / "empty"), "-o", f"{tmp_path}/made"])
    assert str(refused.exception).endswith(" or .pt")


def test_an_output_that_is_a_link_to_itself_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(CLEAN) + "\n")
    (tmp_path / "loop").symlink_to("loop")
    refused = CliRunner().invoke(app, ["purify", str(tmp_path), "-o", f"{tmp_path}/loop"])
    assert isinstance(refused.exception, RecordError)
    assert "loop cannot be written: " in str(refused.exception)


@pytest.mark.parametrize(("name", "stop"), [("out.jsonl", 1), ("out.json", 2), ("out.json", 4)])
def test_the_mark_of_a_file_stays_out_of_the_midst_of_another(tmp_path: Path, name: str, stop: int) -> None:
    order = ("document", "lines", "array") if name.endswith("l") else ("array", "document", "lines")
    inputs = written(tmp_path, **{kind: [CLEAN] if kind == "document" else [CLEAN, CLEAN] for kind in order})
    for path in inputs:
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    one = assignment(inputs, tmp_path / name)
    with pytest.raises(JobStopped):
        purified(one, stop_after=stop)
    purified(one, resume=True)
    text = one.out.read_text("utf-8-sig")
    assert (json.loads(text) if name == "out.json" else list(map(json.loads, text.splitlines()))) == [CLEAN] * 5


@pytest.mark.parametrize("order", list(itertools.permutations(("lines", "array", "document"))), ids="-".join)
def test_inputs_of_several_shapes_become_one_file_that_can_be_read(tmp_path: Path, order: tuple[str, ...]) -> None:
    inputs = written(tmp_path, **{name: [CLEAN, CLEAN][: 1 if name == "document" else 2] for name in order})
    for stop in range(1, 5):
        out = tmp_path / f"out-{stop}.json"
        with pytest.raises(JobStopped):
            purified(assignment(inputs, out), stop_after=stop)
        purified(assignment(inputs, out), resume=True)
        assert parsed(out) == [CLEAN] * 5


def test_nothing_is_left_to_resume_where_what_was_gone_on_with_cannot_be_kept(tmp_path: Path) -> None:
    inputs = [*written(tmp_path, lines=[CLEAN, CLEAN]), tmp_path / "rows.parquet"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([CLEAN]), inputs[1])
    one = assignment(inputs, tmp_path / "out", into_folder=True)
    with pytest.raises(JobStopped) as first:
        purified(one, stop_after=1)
    assert first.value.kept == one.state_path
    with pytest.raises(JobStopped) as then:
        purified(one, resume=True, stop_after=2)
    assert (then.value.kept, one.state_path.exists()) == (None, False)
    assert parsed(tmp_path / "out" / "lines.jsonl") == [CLEAN, CLEAN]
    purified(assignment(inputs[1:], tmp_path / "out", into_folder=True))


def test_tables_with_other_columns_become_one_with_all_of_them(tmp_path: Path) -> None:
    inputs = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    rows: list[list[dict[str, Any]]] = [[{**CLEAN, "a": 1}, {**CLEAN, "a": 2}], [{"b": "x", **CLEAN}]]
    for path, some in zip(inputs, rows, strict=True):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(some), path)
    out = tmp_path / "out.parquet"
    purified(assignment(inputs, out))
    assert [(row["a"], row["b"]) for row in pyarrow.parquet.read_table(out).to_pylist()] == [
        (1, None), (2, None), (None, "x")
    ]  # fmt: skip


def test_an_array_of_which_nothing_was_kept_is_begun_by_the_next_one(tmp_path: Path) -> None:
    inputs = written(tmp_path, array1=[LEFT], array2=[], array3=[LEFT, CLEAN, CLEAN])
    for stop in (None, 1, 2, 3):
        out = tmp_path / f"out-{stop}.json"
        one = assignment(inputs, out, drop_unrepaired=True)
        if stop is not None:
            with pytest.raises(JobStopped):
                purified(one, stop_after=stop)
        purified(one, resume=stop is not None)
        assert parsed(out) == [CLEAN, CLEAN]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("into_folder", [True, False])
def test_a_file_that_cannot_be_read_is_skipped_and_told(tmp_path: Path, into_folder: bool, jobs: int) -> None:
    inputs = written(tmp_path, array1=[CLEAN, CLEAN], array2=[CLEAN, CLEAN], array3=[CLEAN])
    broken = [tmp_path / "no.eval", tmp_path / "cut.jsonl.gz"]
    broken[0].write_bytes(b"no zip")
    broken[1].write_bytes(gzip.compress(inputs[0].read_bytes())[:-20])
    inputs[1].write_bytes(inputs[1].read_bytes()[:-20])
    out = tmp_path / ("out" if into_folder else "out.json")
    files = [broken[0], *inputs, broken[1]]
    one = assignment(files, out, into_folder=into_folder, skip_bad=True, jobs=jobs)
    run = FileJob(one)
    counts = run(lambda *_: None, lambda: False)
    assert [(c.transcripts, c.bad, c.bad_at) for c in counts] == [
        (0, 1, [1]), (2, 0, []), (1, 1, [2]), (1, 0, []), (0, 1, [1]),
    ]  # fmt: skip
    assert [message.partition(":")[0].partition(" is")[0] for message in run.bad] == [
        str(broken[0]), f"{inputs[1]}, item 2", f"{broken[1]}, line 1",
    ]  # fmt: skip
    read = [parsed(path) for path in sorted(out.iterdir())] if into_folder else [parsed(out)]
    assert read == ([[CLEAN, CLEAN], [CLEAN], [CLEAN]] if into_folder else [[CLEAN] * 4])


@pytest.mark.parametrize(("name", "tool"), [("b.parquet.gz", "gzip"), ("b.parquet.zst", "zstd"), ("b.pt.gz", "gzip")])
def test_a_table_that_is_compressed_as_a_whole_is_an_input_that_cannot_be_read(
    tmp_path: Path, name: str, tool: str
) -> None:
    inputs = [tmp_path / "a.jsonl", tmp_path / name, tmp_path / "c.jsonl"]
    for path in inputs:
        path.write_bytes(json.dumps(CLEAN).encode() + b"\n")
    kind = Path(name).suffixes[0]
    told = f"{inputs[1]}: a {kind} that is compressed as a whole is not read; unpack it first: {tool} -d "
    with pytest.raises(RecordError, match=re.escape(told)):
        purified(assignment(inputs[1:2], tmp_path / "out.jsonl"))
    run = FileJob(assignment(inputs, tmp_path / "out", into_folder=True, skip_bad=True))
    assert [count.transcripts for count in run(lambda *_: None, lambda: False)] == [1, 0, 1]
    assert run.bad == [f"{told}{inputs[1]}"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.jsonl", "c.jsonl"]


def test_a_package_that_a_later_file_needs_ends_a_run_that_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [*written(tmp_path, lines=[LEFT, CLEAN]), tmp_path / "more.jsonl.zst"]
    inputs[1].write_bytes(zstandard.ZstdCompressor().compress(json.dumps(CLEAN).encode() + b"\n"))
    one = assignment(inputs, tmp_path / "out.jsonl", audit=tmp_path / "audit.jsonl")
    told = r"more\.jsonl\.zst is compressed with zstd"
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "zstandard", None)
        with pytest.raises(MissingExtra, match=told):
            purified(assignment(inputs[1:], tmp_path / "none.jsonl"))
        run = FileJob(assignment(inputs, tmp_path / "some.jsonl", skip_bad=True))
        assert [count.transcripts for count in run(lambda *_: None, lambda: False)] == [2, 0]
        assert re.search(told, run.bad[0])
        with pytest.raises(JobStopped, match=told):
            purified(one)
    purified(one, resume=True)
    assert parsed(one.out) == [LEFT, CLEAN, CLEAN]
    assert len(parsed(tmp_path / "audit.jsonl")) == 1


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"b\*\*\.jsonl is no pattern of files|no file matches"):
        list(expand([f"{tmp_path}/b**.jsonl"]))


def test_where_no_file_can_be_read_that_is_an_error(tmp_path: Path) -> None:
    inputs = [tmp_path / "a.eval", tmp_path / "b.eval"]
    for path in inputs:
        path.write_bytes(b"no zip")
    with pytest.raises(RecordError, match=r"none of the files can be read\n.*a\.eval is not an inspect_ai log"):
        purified(assignment(inputs, tmp_path / "out.jsonl", audit=tmp_path / "audit.jsonl", skip_bad=True))
    assert sorted(tmp_path.iterdir()) == inputs


def test_half_an_emoji_in_an_example_and_a_name_that_is_no_text_stop_neither_state_nor_report(tmp_path: Path) -> None:
    program = "print('\ud83d', 6 * {})"
    half = markdown((user("?"), fails(program.format("x")), works(program.format("7"), "42"), answer("42")))
    source = tmp_path / os.fsdecode(b"\xff.jsonl")
    source.write_text(json.dumps(half) + "\n" + json.dumps(CLEAN) + "\n")
    one = assignment([source], tmp_path / "out.jsonl")
    with pytest.raises(JobStopped):
        purified(one, stop_after=1)
    run = FileJob(one, resume=True)
    (count,) = run(lambda *_: None, lambda: False)
    assert (count.transcripts, count.shallow) == (2, 1)
    write_report(tmp_path / "report.json", run)
    (file,) = json.loads((tmp_path / "report.json").read_bytes())["files"]
    assert file["file"] == str(source)
    assert file["examples"][0]["fix"] == program.format("7")


@pytest.mark.parametrize("ends", [0, 2], ids=["cut off", "two lists"])
def test_a_transcript_that_is_a_list_and_does_not_end_well_is_refused_by_that(tmp_path: Path, ends: int) -> None:
    source, items = tmp_path / "in.json", json.dumps(CLEAN["messages"])
    source.write_text((items + "\n") * ends or items[:-1])
    with pytest.raises(RecordError, match=r"item 5: (the array is over, and more|not JSON: the array is not closed)"):
        purified(assignment([source], tmp_path / "out.json"))
