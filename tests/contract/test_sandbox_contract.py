"""What every sandbox owes its caller, whatever its tier. A new one joins by a line in tests/sandboxes.py."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pytest

from retcon.core.errors import SandboxBusy, SandboxUnavailable
from retcon.sandbox.types import Limits, Result, Sandbox
from sandboxes import Opened

pytestmark = pytest.mark.filterwarnings("ignore::retcon.core.errors.SandboxWarning")

MARKED = sys.version_info >= (3, 13)  # calls, too


def run(opened: Opened, code: str, **options: object) -> Result:
    return opened.run(lambda sandbox: sandbox.run(code, **options))


def test_what_is_printed_and_what_it_evaluates_to_are_distinguished(opened: Opened) -> None:
    result = run(opened, "print(1 + 1)\n[3, 'x']")
    assert (result.status, result.stdout, result.value, result.exit_code) == ("ok", "2\n", "[3, 'x']", 0)
    assert result.error_type is None
    assert result.stderr == ""
    assert result.seconds > 0
    assert result.peak_memory > 1 << 20


@pytest.mark.parametrize("code", ["", "# only a comment", "x = 1", "None"])
def test_no_output_is_ok(opened: Opened, code: str) -> None:
    result = run(opened, code)
    assert (result.status, result.stdout, result.value) == ("ok", "", None)


def test_an_exception_gives_pythons_own_traceback(opened: Opened) -> None:
    result = run(opened, "print('before')\ndef f():\n    return powmod(2, 3)\nf()")
    assert (result.status, result.error_type, result.exit_code) == ("error", "NameError", 1)
    assert result.stdout == "before\n"
    assert result.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<python>", line 4, in <module>\n'
        "    f()\n" + "    ~^^\n" * MARKED + '  File "<python>", line 3, in f\n'
        "    return powmod(2, 3)\n"
        "           ^^^^^^\n"
        "NameError: name 'powmod' is not defined\n"
    )


def test_a_syntax_error_comes_before_anything_runs(opened: Opened) -> None:
    result = run(opened, "print('never')\nprint(pow(2, 3)")
    assert (result.status, result.error_type, result.stdout) == ("error", "SyntaxError", "")
    assert result.stderr.startswith('  File "<python>", line 2\n')
    assert result.stderr.endswith("SyntaxError: '(' was never closed\n")


@pytest.mark.parametrize("code", ["print(1 2)", "a\0b", "'\ud800'.encode()", "(" * 300, "1 / 0", "repr(object().x)"])
def test_no_frame_of_the_sandbox_shows(opened: Opened, code: str) -> None:
    result = run(opened, code)
    assert result.status == "error"
    assert "retcon" not in result.stderr


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stdin": "a\ud800"}, "stdin is not Unicode: surrogates not allowed at character 1"),
    ({"stdin": 3}, "stdin is a int"),
    ({"files": {"a": "text"}}, "the content of file 'a' is a str"),
    ({"files": {"a\ud800": b""}}, "not Unicode"),
    ({"files": {3: b""}}, "file 3 is named by a int"),
    ({"files": {"a\0": b""}}, "not a path inside the scratch folder"),
    ({"files": {"a": b"", "./a": b""}}, "give it a name of its own"),
    ({"files": {"/".join("a" * 1500): b""}}, "128 parts at most"),
    ({"files": {str(n): b"" for n in range(9000)}}, "9000 files"),
]


def test_what_cannot_be_given_to_a_program_is_the_callers_mistake_and_named(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> Result:
        for wrong, said in WRONG:
            with pytest.raises(ValueError, match=re.escape(said)):
                await sandbox.run("print(1)", **wrong)
        return await sandbox.run("print(1)")

    assert opened.run(work).stdout == "1\n"


SOURCE = (
    "import inspect\ndef f(a):\n    return a\nclass A:\n    x = 1\nprint(inspect.getsource(f), inspect.getsource(A))"
)


def test_a_program_can_read_its_own_source_and_knows_its_file(opened: Opened) -> None:
    assert run(opened, SOURCE).stdout == "def f(a):\n    return a\n class A:\n    x = 1\n\n"
    code = "import os\nopen(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'beside.txt')).read()"
    assert run(opened, code, files={"beside.txt": b"x"}).value == "'x'"


def test_a_program_imports_what_lies_beside_it(opened: Opened) -> None:
    files = {"helper.py": b"from parts import one\n", "parts/__init__.py": b"one = 1\n"}
    assert run(opened, "import helper\nhelper.one", files=files).value == "1"
    assert run(opened, "import helper").error_type == "ModuleNotFoundError"


@pytest.mark.parametrize(
    ("code", "status", "error_type", "exit_code"),
    [
        ("import sys; sys.exit()", "ok", None, 0),
        ("import os; os._exit(0)", "ok", None, 0),
        ("import sys; sys.exit(3)", "error", "SystemExit", 3),
        ("import sys; sys.exit('no')", "error", "SystemExit", 1),
        ("import sys; sys.exit(2**64)", "error", "SystemExit", 255),
        ("import sys; sys.exit(-1)", "error", "SystemExit", 255),
        ("class S(SystemExit):\n    code = property(lambda s: 1 / 0)\nraise S", "error", "SystemExit", 1),
        ("import sys\nclass X:\n    def __str__(s): 1 / 0\nsys.exit(X())", "error", "SystemExit", 1),
        ("import sys\nclass I(int):\n    def __and__(s, o): return 'x'\nsys.exit(I(3))", "error", "SystemExit", 3),
        ("import os; os._exit(4)", "error", "SystemExit", 4),
        ("import os; os.abort()", "error", "SIGABRT", -6),
        ("import os; os.kill(os.getpid(), 24)", "error", "SIGXCPU", -24),
        ("raise MemoryError", "limit", "MemoryError", 1),
        ("class Mine(Exception): pass\nraise Mine", "error", "Mine", 1),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt", 1),
    ],
)
def test_every_way_to_end(opened: Opened, code: str, status: str, error_type: str | None, exit_code: int) -> None:
    result = run(opened, code)
    assert (result.status, result.error_type, result.exit_code) == (status, error_type, exit_code)
    if status != "ok":
        assert result.error_type in result.stderr.splitlines()[-1]


def test_cpu_time_is_limited_and_what_was_printed_is_kept(opened: Opened) -> None:
    result = run(opened, "print('start')\nwhile True: pass", limits=Limits(cpu_seconds=1))
    assert (result.status, result.error_type, result.stdout) == ("timeout", "TimeoutError", "start\n")
    assert result.stderr == "TimeoutError: no end after 1 s of CPU time\n"


def test_wall_time_is_limited_and_what_was_printed_is_kept(opened: Opened) -> None:
    result = run(opened, "import time\nprint('start')\ntime.sleep(60)", limits=Limits(wall_seconds=0.3))
    assert (result.status, result.error_type, result.stdout) == ("timeout", "TimeoutError", "start\n")
    assert result.stderr == "TimeoutError: no end after 0.3 s\n"
    assert result.seconds < 30


def test_memory_is_limited(opened: Opened) -> None:
    result = run(opened, "x = []\nwhile True: x.append(bytearray(10**6))", limits=Limits(memory_mb=64))
    assert (result.status, result.error_type) == ("limit", "MemoryError")
    assert result.stderr.endswith("MemoryError\n")
    assert result.peak_memory < 200 << 20


def test_long_output_keeps_head_and_tail_and_says_the_cut(opened: Opened) -> None:
    code = "print('a' * 5000 + 'b' * 5000)\n'v' * 5000"
    result = run(opened, code, limits=Limits(output_bytes=100))
    assert result.status == "ok"
    assert result.stdout == "a" * 50 + "\n[9901 bytes cut]\n" + "b" * 49 + "\n"
    assert result.value is not None
    assert len(result.value) <= 100
    assert re.fullmatch(r"'v+\n\[4\d{3} characters cut\]\nv+'", result.value)


def test_stdin_and_files_are_there(opened: Opened) -> None:
    code = "import sys\nprint(input(), sys.stdin.read())\nprint(open('d/a.txt', 'rb').read())"
    result = run(opened, code, stdin="one\ntwo é", files={"d/a.txt": b"\x00\xff"})
    assert (result.status, result.stdout) == ("ok", "one two é\nb'\\x00\\xff'\n")


def test_a_call_that_had_to_wait_for_too_long_is_not_run_and_not_the_programs_fault(opened: Opened) -> None:
    """In this process it is an exception; a server is asked again until the client's tries are used up."""

    async def work(sandbox: Sandbox) -> Result:
        await sandbox.run("1")
        first = asyncio.create_task(sandbox.run("import time; time.sleep(600)", timeout=600))
        await asyncio.sleep(0)  # it has the one worker from here on
        try:
            return await sandbox.run("print(1)", wait=0.2)
        except SandboxBusy as error:
            return Result("infrastructure", stderr=str(error))
        finally:
            first.cancel()

    result = opened.run(work)
    assert (result.status, result.stdout) == ("infrastructure", "")
    assert "no worker was free" in result.stderr


def test_a_call_that_may_not_wait_at_all_takes_a_worker_that_is_free(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> Result:
        await sandbox.run("1")
        for wrong in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="wait is "):
                await sandbox.run("1", wait=wrong)
        return await sandbox.run("print(1)", wait=0.0)

    assert opened.run(work).stdout == "1\n"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_a_file_outside_the_scratch_folder_is_refused(opened: Opened, name: str) -> None:
    with pytest.raises(ValueError, match="inside the scratch folder"):
        run(opened, "1", files={name: b""})


def test_files_that_a_call_has_written_are_handed_back(opened: Opened) -> None:
    code = (
        "import os\nos.mkdir('d')\nopen('d/a', 'wb').write(b'\\0x')\nopen('empty', 'w').close()\n"
        "os.symlink('/etc/hostname', 'link')\nos.symlink('/etc', 'folder')\nos.mkfifo('fifo')\nos.link('d/a', 'hard')\n"
        "raise ValueError"
    )
    asked = ["d/a", "./d/a", "empty", "absent", "link", "folder/hostname", "fifo", "d", "hard", "x" * 5000]
    result = run(opened, code, fetch=asked)
    assert result.error_type == "ValueError"
    assert result.files == {"d/a": b"\0x", "./d/a": b"\0x", "empty": b"", "hard": b"\0x"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "\ud800"])
def test_a_file_outside_the_scratch_folder_is_not_handed_back(opened: Opened, name: str) -> None:
    with pytest.raises(ValueError, match=r"inside the scratch folder|not Unicode"):
        run(opened, "1", fetch=[name])


def test_no_call_sees_another(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> Result:
        spoil = (
            "import builtins, os, sys\nx = 1\nopen('left', 'w').close()\nos.environ['A'] = 'b'\nsys.path.clear()\n"
            "for name in ('print', 'len', 'repr', 'str', 'type', 'BaseException', 'SystemExit'):\n"
            "    setattr(builtins, name, None)"
        )
        assert (await sandbox.run(spoil)).status == "ok"
        return await sandbox.run("import os\nprint(len([1]), 'x' in globals(), 'A' in os.environ, os.listdir())")

    assert opened.run(work).stdout == "1 False False []\n"


def test_calls_queue(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> Result:
        results = await asyncio.gather(*(sandbox.run(f"print({i})") for i in range(40)))
        assert [r.stdout for r in results] == [f"{i}\n" for i in range(40)]
        return results[0]

    assert opened.run(work).status == "ok"


def test_a_cancelled_call_ends_and_the_next_one_is_answered_with_its_own_result(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> Result:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sandbox.run("import time\nprint('old')\ntime.sleep(60)")
        return await sandbox.run("print('new')")

    assert opened.run(work).stdout == "new\n"


def test_a_closed_sandbox_refuses(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> Result:
        await sandbox.close()
        await sandbox.close()
        return await sandbox.run("1")

    with pytest.raises(SandboxUnavailable, match="not open"):
        opened.run_apart(work)


DRAW = "import random, numpy\nprint(random.random(), numpy.random.rand())"


def test_random_numbers_repeat_with_a_seed_and_never_without(opened: Opened) -> None:
    async def work(sandbox: Sandbox) -> list[str]:
        return [(await sandbox.run(DRAW, seed=seed)).stdout for seed in (5, 5, 6, None, None)]

    first, again, *others = opened.run(work)
    assert first == again
    assert len({first, *others}) == 4


def test_a_generator_that_is_not_preloaded_is_seeded_when_it_is_imported(opened: Opened) -> None:
    unseen = "np = __import__('numpy')\nprint(np.random.rand())"
    plain = "import numpy as np\nprint(np.random.rand())"

    async def work(sandbox: Sandbox) -> list[str]:
        return [(await sandbox.run(code, seed=5)).stdout for code in (unseen, unseen, plain)]

    assert len(set(opened.run(work))) == 1


def test_what_is_handed_back_is_bounded(opened: Opened) -> None:
    code = "for name in 'abc': open(name, 'wb').write(b'x' * (5 << 20))\nopen('d', 'w').write('y')"
    assert set(run(opened, code, fetch=["a", "b", "d"]).files) == {"a", "d"}


def test_a_call_may_wait_for_a_worker_as_long_as_it_likes(opened: Opened) -> None:
    assert run(opened, "print(1)", wait=600).stdout == "1\n"
