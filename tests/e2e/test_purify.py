"""`retcon purify` and `retcon diff` as a user meets them."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commands import retcon, started
from foreign import FAILED, FIXED, FORMATS, REPAIRED, answer, fails, inspect, messages, user, works

CLEAN = (user("?"), works("x = 1"), answer("1"))
STAYS = (user("?"), fails(FAILED, line=2), answer("4, I guess"))


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def logs(folder: Path) -> None:
    """inspect's, of one sample, as `log.json` and `log.eval`."""
    (folder / "log.json").write_text(json.dumps({"version": 2, "eval": {}, "samples": [inspect(REPAIRED)]}, indent=1))
    with zipfile.ZipFile(folder / "log.eval", "w") as file:
        file.writestr("header.json", "{}")
        file.writestr("samples/1_epoch_1.json", json.dumps(inspect(REPAIRED)))


def programs(value: object) -> str:
    """All text of a record, JSON in JSON undone, to look for programs in."""
    return json.dumps(value).replace("\\", "")


def parsed(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("name", ["messages", "swe_agent", "ours"])
def test_records_go_in_and_come_out(tmp_path: Path, name: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    clean = json.dumps(FORMATS[name](CLEAN), indent=None, separators=(", ", ":  ")).encode() + b"\n"
    source.write_bytes(clean + lines(FORMATS[name](REPAIRED), FORMATS[name](STAYS)))
    # What a shell changes cannot be told from its text: such failures are left alone unless that is asked for.
    state = ("--state", "ignore") if name == "swe_agent" else ()
    done = retcon("purify", source, "-o", out, "--report", tmp_path / "r.json", *state)
    assert done.returncode == 0, done.stderr
    written = out.read_bytes().splitlines(keepends=True)
    assert written[0] == clean  # to the byte, spaces and all
    first, second = parsed(out.read_bytes())[1:]
    assert "math.sqrt(16)" in programs(first)
    assert "sqroot" not in programs(first).replace("abandoned", "") or name == "ours"
    assert second == FORMATS[name](STAYS) or name == "ours"
    (count,) = json.loads((tmp_path / "r.json").read_bytes())["files"]
    expected = {"transcripts": 3, "calls": 4, "failed": 2, "shallow": 1, "deep": 0, "changed": 1, "bad": 0}
    assert {name: count[name] for name in expected} == expected
    assert count["left"] == {"answered": 1}
    assert count["examples"][0]["failed"].strip() == FAILED


def test_a_dry_run_lists_what_would_go_and_what_would_stay_and_writes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(messages(REPAIRED), messages(STAYS)))
    made = retcon("purify", source, "--dry-run")
    assert made.returncode == 0, made.stderr
    first, second, last = made.stdout.splitlines()
    assert first.startswith("in.jsonl:1, turn 0: python failed")
    assert "-> turn 1, " in first
    assert "stays: the model answers" in second
    assert last == "2 of 3 calls failed; 1 would be replaced, 1 would stay; nothing was written"
    assert list(tmp_path.iterdir()) == [source]
    assert retcon("purify", source).returncode == 2, "without an output there is nothing to do"


def test_pairs_for_dpo_are_messages_as_trl_reads_them(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(messages(REPAIRED)))
    done = retcon("purify", source, "-o", tmp_path / "out.jsonl", "--dpo", tmp_path / "pairs.jsonl")
    assert done.returncode == 0, done.stderr
    (pair,) = parsed((tmp_path / "pairs.jsonl").read_bytes())
    assert [m["role"] for m in pair["prompt"]] == ["user"]
    for side, code in (("chosen", FIXED), ("rejected", FAILED)):
        (message,) = pair[side]
        assert message["content"] == "let me see"
        assert json.loads(message["tool_calls"][0]["function"]["arguments"])["code"] == code
    assert pair["decision"] == "shallow"


def test_a_folder_keeps_its_shape_and_each_file_its_kind(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "clean"
    (data / "deep").mkdir(parents=True)
    (data / "a.jsonl.gz").write_bytes(gzip.compress(lines(messages(REPAIRED))))
    (data / "deep" / "b.json").write_text(json.dumps([messages(CLEAN), messages(REPAIRED)]))
    logs(data)
    done = retcon("purify", data, "-o", f"{out}/")
    assert done.returncode == 0, done.stderr
    assert "sqroot" not in programs(parsed(gzip.decompress((out / "a.jsonl.gz").read_bytes())))
    array = json.loads((out / "deep" / "b.json").read_bytes())
    assert array[0] == messages(CLEAN)
    assert len(array[1]["messages"]) == 4
    log = json.loads((out / "log.json").read_bytes())
    assert len(log["samples"][0]["messages"]) == 4
    with zipfile.ZipFile(out / "log.eval") as file:
        assert len(json.loads(file.read("samples/1_epoch_1.json"))["messages"]) == 4
    assert not list(out.rglob("*.partial*"))
    shown = retcon("diff", out / "retcon.audit.jsonl", "--all").stdout
    assert shown.count("· shallow") == 4
    assert "failed: unknown (rule: status)" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("in.jsonl", "-o", "o.jsonl.xz"), "o.jsonl.xz would not be a .xz file"),
        (("in.jsonl", "-o", "o.eval"), "an .eval can only hold what came from one .eval"),
        (("log.json", "-o", "o.eval"), "an .eval can only hold what came from one .eval"),
        (("log.eval", "-o", "o.json"), "an .eval log cannot go to o.json; name an .eval or a .jsonl"),
        (("log.eval", "-o", "o.eval.gz"), "an .eval log cannot go to o.eval.gz"),
        (("log.eval", "-o", "-"), "an .eval log cannot go to standard output"),
        (("in.jsonl", "-o", "o.jsonl", "--dpo", "pairs.parquet"), "pairs.parquet would not be a .parquet file"),
        (("in.jsonl", "-o", "o.parquet.gz"), "o.parquet.gz: a .parquet is compressed within, and never as a whole"),
        (("in.jsonl", "-o", "o.jsonl", "--dpo", "pairs.parquet.gz"), "pairs.parquet.gz would not be a .parquet file"),
        (("in.jsonl", "-o", "o.jsonl", "--report", "-"), "--report -: standard output is not supported here"),
    ],
    ids=["xz", "eval", "log as eval", "eval as json", "eval packed", "eval printed", "dpo", "packed", "dpo packed",
         "report"],
)  # fmt: skip
def test_nothing_is_written_under_the_name_of_another_kind(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(messages(CLEAN)))
    logs(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = retcon("purify", *(tmp_path / word if "." in word else word for word in words))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_bad_line_stops_by_name_and_what_was_done_is_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good, bad = lines(messages(REPAIRED)), b'{"messages": [\n'
    source.write_bytes(good + bad + good)
    out.write_bytes(b"as before\n")
    words = ("purify", source, "-o", out)
    assert "is there already, and finished; --force replaces it" in retcon(*words).stderr
    done = retcon(*words, "--force")
    assert done.returncode == 2
    message = done.stderr
    assert f"error: {source}, line 2: not JSON" in message
    assert "--resume" in message
    assert "Traceback" not in message
    assert out.read_bytes() == b"as before\n"
    assert "remove it to start over" in retcon(*words, "--force").stderr
    assert "another attempts" in retcon(*words, "--resume", "--attempts", 2).stderr
    source.write_bytes(good + lines(messages(CLEAN)) + good)
    done = retcon(*words, "--resume", "--report", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    assert len(parsed(out.read_bytes())) == 3
    assert json.loads((tmp_path / "r.json").read_bytes())["total"]["shallow"] == 2
    assert len(parsed((tmp_path / "out.audit.jsonl").read_bytes())) == 2
    assert not list(tmp_path.glob("*.partial*"))


def test_ctrl_c_keeps_what_is_done_and_resume_gives_what_one_run_gives(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    source = tmp_path / "in.jsonl"
    os.mkfifo(source)
    words = ("purify", source, "-o", out)
    block = lines(messages(REPAIRED), messages(CLEAN)) * 300
    with started(*words) as running:
        with contextlib.suppress(BrokenPipeError), source.open("wb") as pipe:
            # That the other end is open says that its handler is in place.
            running.send_signal(signal.SIGINT)
            for _ in range(2000):
                pipe.write(block)
        ended = running.finish()
    assert ended.returncode == 130, ended.stderr
    assert "--resume" in ended.stderr
    kept = (tmp_path / "out.jsonl.partial").read_bytes()
    assert kept.endswith(b"\n")
    assert not out.exists()
    source.unlink()
    source.write_bytes(block * 3)
    assert 1 <= len(parsed(kept)) <= 1800
    done = retcon(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert retcon("purify", source, "-o", whole).returncode == 0
    assert out.read_bytes() == whole.read_bytes()
    assert (tmp_path / "out.audit.jsonl").read_bytes() == (tmp_path / "whole.audit.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "hermez"), "no transcript format 'hermez' (did you mean 'hermes'?)"),
        (("--format", "hermes"), "line 1: no transcript of format 'hermes'"),
        (("--resume",), "nothing to resume"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: Sequence[str], message: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines({"no": "transcript"}))
    done = retcon("purify", source, "-o", tmp_path / "out.jsonl", *words)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "d/../in.jsonl"), "-o d/../in.jsonl is an input too"),
        (("-o", "."), "-o in.jsonl is an input too"),
        (("-o", "new.jsonl", "--audit", "in.jsonl"), "--audit in.jsonl is an input too"),
        (("-o", "new.jsonl", "--report", "in.jsonl"), "--report in.jsonl is an input too"),
        (("-o", "new.jsonl", "--audit", "./new.jsonl"), "are one file"),
        (("-o", "new.jsonl", "--audit", "a.jsonl", "--no-audit"), "nothing is written to a.jsonl: give one of"),
        (("-o", "/dev/full"), "is a device, and not written over"),
        (("-o", "new.jsonl", "--report", "old.json"), "--report old.json is there already"),
    ],
)
def test_outputs_replace_nothing_that_they_must_not(tmp_path: Path, words: Sequence[str], message: str) -> None:
    (tmp_path / "d").mkdir()
    for name in ("in.jsonl", "old.json"):
        (tmp_path / name).write_bytes(lines(messages(REPAIRED)))
    before = {path.name: path.is_dir() or path.read_bytes() for path in tmp_path.iterdir()}
    done = retcon("purify", "in.jsonl", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert {path.name: path.is_dir() or path.read_bytes() for path in tmp_path.iterdir()} == before
    assert Path("/dev/full").is_char_device()


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    deep = (
        user("?"),
        fails("import sympy as sp\nroot = 1", "ModuleNotFoundError"),
        works("root = 16 ** 0.5", said="without"),
    )
    (folder / "in.jsonl").write_bytes(lines(messages(REPAIRED), messages(deep), messages(STAYS)))
    assert retcon("purify", folder / "in.jsonl", "-o", folder / "out.jsonl").returncode == 0
    return folder / "out.audit.jsonl"


def test_diff_shows_failure_and_fix_side_by_side(audit: Path) -> None:
    wide = retcon("diff", audit, COLUMNS="160").stdout
    assert re.search(r"- root = math.sqroot\(16\) +\+ root = math.sqrt\(16\)", wide)
    assert re.search(r"in.jsonl:1 · turn 1 · shallow", wide)
    assert "failed: AttributeError (rule: traceback) · similarity 0.9" in wide
    assert "\x1b" not in wide
    narrow = retcon("diff", audit, COLUMNS="70").stdout
    assert "- root = math.sqroot(16)\n+ root = math.sqrt(16)\n" in narrow


def test_the_audit_holds_the_record_as_it_was_and_show_reads_it(audit: Path) -> None:
    records = parsed(audit.read_bytes())
    assert [r["turns"][0]["repair"]["decision"] for r in records] == ["shallow", "deep", "unrepaired"]
    assert records[0]["origin"]["record"] == messages(REPAIRED)
    assert records[0]["origin"]["format"] == "messages"
    shown = retcon("show", audit, "in.jsonl:1").stdout
    assert "before: as it was sampled" in shown
