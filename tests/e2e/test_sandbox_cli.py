"""`retcon sandbox` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import pytest

from commands import retcon
from retcon.cli.sandbox import exit_code
from retcon.sandbox.types import Result
from servers.serving import server


def sandbox(*words: object, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return retcon("sandbox", *words, stdin=stdin, **environment)


@pytest.mark.parametrize(
    ("code", "options", "exit_code", "stdout", "last"),
    [
        ("print('a')\n1 + 1", (), 0, "a\n2\n", ""),
        ("print('a', end='')\n'b'", (), 0, "a\n'b'\n", ""),
        ("\ufeffprint('marked')", (), 0, "marked\n", ""),
        ("1 / 0", (), 1, "", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(7)", (), 7, "", "SystemExit: 7"),
        ("import os; os.abort()", (), 134, "", "SIGABRT: killed by signal 6"),
        ("import time; time.sleep(600)", ("--timeout", "0.3"), 124, "", "TimeoutError: no end after 0.3 s"),
        ("x = bytearray(1 << 31)", ("--memory", "64"), 125, "", "MemoryError"),
    ],
)
def test_a_program_ends_as_it_would_elsewhere(
    tmp_path: Path, code: str, options: tuple[str, ...], exit_code: int, stdout: str, last: str
) -> None:
    (tmp_path / "program.py").write_text(code)
    done = sandbox("exec", *options, tmp_path / "program.py")
    assert (done.returncode, done.stdout) == (exit_code, stdout)
    assert (done.stderr.splitlines() or [""])[-1] == last


def test_the_program_may_come_from_standard_input_and_so_may_its_input(tmp_path: Path) -> None:
    assert sandbox("exec", "-", stdin="print(2)").stdout == "2\n"
    (tmp_path / "program.py").write_text("print(input())")
    assert sandbox("exec", "--stdin", "-", tmp_path / "program.py", stdin="given\n").stdout == "given\n"


def test_a_fault_of_the_sandbox_is_reported_by_its_own_exit_code_however_the_program_ended() -> None:
    assert exit_code(Result("infrastructure", exit_code=-9)) == exit_code(Result("infrastructure")) == 126
    assert exit_code(Result("error", "SIGKILL", exit_code=-9)) == 137
    assert exit_code(Result("error", "E", exit_code=0)) == 1  # a failure is none of success


def test_the_whole_result_as_json() -> None:
    done = sandbox("exec", "--json", "-", stdin="print(1)\n2")
    told = json.loads(done.stdout)
    assert (told["status"], told["stdout"], told["value"], done.returncode) == ("ok", "1\n", "2", 0)


def test_a_program_may_run_on_a_server() -> None:
    with server("--workers", "1", "--token", "t") as made:
        assert sandbox("exec", "--url", made.url, "-", stdin="print(3)", RETCON_SANDBOX_TOKEN="t").stdout == "3\n"
        refused = sandbox("exec", "--url", made.url, "-", stdin="print(3)")
        assert (refused.returncode, "another token" in refused.stderr) == (2, True)
        assert "into RETCON_SANDBOX_TOKEN" in refused.stderr


def test_a_program_may_have_another_interpreter_and_packages_that_are_there_before_it(tmp_path: Path) -> None:
    """Another one: a link to this one, by another name."""
    program = "import sys\nprint(sys.executable)\nprint('tomllib' in sys.modules)"
    done = sandbox("exec", "--package", "tomllib", "-", stdin=f"{program}\nimport tomllib")
    assert (done.stdout.splitlines()[1:], done.stderr) == (["True"], "")
    venv.create(tmp_path / "other", symlinks=True)
    other = str(tmp_path / "other" / "bin" / "python")
    done = sandbox("exec", "--python", other, "-", stdin=program)
    assert (done.stdout, done.stderr) == (f"{other}\nFalse\n", "")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("exec", "--package", "a b", "-"), "not the name of a module"),
        (("exec", "--package", "nump", "-"), "did you mean 'numpy'?"),
        (("exec", "--url", "http://127.0.0.1:1", "--package", "numpy", "-"), "`retcon sandbox serve` there"),
        (("exec", "nowhere.py"), "nowhere.py: No such file"),
        (("exec", "--tier", "namespace", "-"), "'namespaces'"),
        (("exec", "--url", "localhost:80", "-"), "http://host:port"),
        (("serve", "--token-file", "nowhere"), "nowhere: No such file"),
        (("serve", "--queue", "0"), "queue is 0"),
        (("serve", "--warm", "nunpy"), "did you mean 'numpy'?"),
        (("serve", "--host", "nowhere.invalid"), "--host nowhere.invalid"),
        (("serve", "--port", "70000"), "65535"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(words: tuple[str, ...], part: str) -> None:
    done = sandbox(*words)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_tells_of_every_tier() -> None:
    done = sandbox("doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert list(told["tiers"]) == ["namespaces", "landlock", "rlimits"]
    for name, probe in told["tiers"].items():
        assert probe["tier"] == name or (probe["tier"] is None and probe["problem"])
        assert probe["tier"] is None or (probe["calls_per_second"] > 0 and probe["fork_ms"] > 0)
    assert told["best"] == next((name for name, probe in told["tiers"].items() if probe["tier"]), None)
    assert all(isinstance(line, str) for line in told["advice"])
    shown = sandbox("doctor")
    assert all(name in shown.stdout for name in told["tiers"])
    assert shown.stdout.count("left open in files: ") == sum(
        probe["tier"] is not None for probe in told["tiers"].values()
    )
