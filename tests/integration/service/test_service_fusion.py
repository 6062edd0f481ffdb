"""What SandboxFusion's and verl's own tests ask of a server, for Python and what goes with it, asked of ours.

Written anew from the behaviour that those suites look for; docs/sandbox/service.md has the table.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from servers.serving import FOLDERS, Server, server

MIB = 1 << 20
SECONDS = 60  # of programs that are to end: a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def made() -> Iterator[Server]:
    with server("--workers", "2") as made:
        yield made


@pytest.fixture(scope="module")
def http(made: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=made.url, timeout=300) as client:
        yield client


@pytest.fixture
def namespaces(http: httpx.Client) -> None:
    """Skips where the server's tier is a weaker one."""
    if (tier := http.get("/health").json()["tier"]) != "namespaces":
        pytest.skip(f"it needs the tier namespaces, and this machine grants {tier}")


def ask(http: httpx.Client, code: str, language: str = "python", **more: Any) -> dict[str, Any]:
    sent = {"compile_timeout": SECONDS, "run_timeout": SECONDS, "code": code, "language": language} | more
    response = http.post("/run_code", json=sent)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(("size", "kept"), [(70_000, 70_000), (MIB, MIB), (2 * MIB, MIB), (9 * MIB, MIB)])
def test_of_output_the_first_mib_is_given(http: httpx.Client, stream: str, size: int, kept: int) -> None:
    ran = ask(http, f"import sys\nsys.{stream}.write('x' * {size})")
    assert ran["status"] == "Success"
    assert ran["run_result"][stream] == "x" * kept


def test_output_is_cut_between_characters(http: httpx.Client) -> None:
    out = ask(http, f"print('a' + 'é' * {MIB})")["run_result"]["stdout"]
    assert out == "a" + "é" * ((MIB - 1) // 2)


def test_how_much_of_it_is_the_servers_to_say() -> None:
    with server("--workers", "1", "--fusion-output", "2") as made, httpx.Client(base_url=made.url, timeout=300) as http:
        assert len(ask(http, "print('x' * 5000)")["run_result"]["stdout"]) == 2048


def test_what_was_printed_before_the_time_was_up_is_kept(http: httpx.Client) -> None:
    code = "import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\ntime.sleep(600)"
    ran = ask(http, code, run_timeout=0.5)
    assert (ran["status"], ran["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert (ran["run_result"]["stdout"], ran["run_result"]["stderr"].splitlines()[0]) == ("out\n", "err")


@pytest.mark.parametrize(
    ("code", "part"), [("assert 1 == 2", "AssertionError"), ("int a = 1", "SyntaxError: invalid syntax")]
)
def test_a_program_that_fails_says_why(http: httpx.Client, code: str, part: str) -> None:
    ran = ask(http, code)
    assert (ran["status"], ran["run_result"]["status"], ran["run_result"]["return_code"]) == ("Failed", "Finished", 1)
    assert part in ran["run_result"]["stderr"]


def test_files_below_folders_that_are_not_there_yet(http: httpx.Client) -> None:
    ran = ask(http, "print(open('a/b/c/d').read())", files={"a/b/c/d": encoded(b"found")})
    assert (ran["status"], ran["run_result"]["stdout"]) == ("Success", "found\n")


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("folder", [*FOLDERS, "/mnt/data", "/workspace/a/b"])
def test_absolute_paths(http: httpx.Client, folder: str) -> None:
    code = f"open('{folder}/out', 'w').write(open('{folder}/in').read() * 2)\nopen('near', 'w').write('n')"
    fetched = [f"{folder}/out", "near", "/mnt/absent", f"{folder}/in"]
    ran = ask(http, code, files={f"{folder}/in": encoded(b"xy")}, fetch_files=fetched)
    assert ran["status"] == "Success", ran
    assert ran["files"] == {f"{folder}/out": encoded(b"xyxy"), "near": encoded(b"n"), f"{folder}/in": encoded(b"xy")}
    seen = ask(http, "import os\nprint(*map(os.listdir, ['/mnt', '/data', '/workspace', '.']))")
    assert seen["run_result"]["stdout"] == "[] [] [] []\n"  # nothing of it is left to the next


@pytest.mark.usefixtures("namespaces")
def test_a_folder_is_there_though_no_file_was_given(http: httpx.Client) -> None:
    ran = ask(http, "open('/mnt/b', 'w').write('sauce')", fetch_files=["/mnt/b"])
    assert ran["files"] == {"/mnt/b": encoded(b"sauce")}


@pytest.mark.usefixtures("namespaces")
def test_a_link_is_not_followed_out_of_an_absolute_path(http: httpx.Client) -> None:
    ran = ask(
        http,
        "import os\nos.symlink('/etc', '/mnt/e')\nos.symlink('/etc/passwd', '/mnt/p')",
        fetch_files=["/mnt/e/passwd", "/mnt/p"],
    )
    assert (ran["status"], ran["files"]) == ("Success", {})


@pytest.mark.parametrize("path", ["/etc/x", "/mnt", "/tmp/../etc/x", "/proc/self/mem", "/mntx/a"])
def test_absolute_paths_elsewhere_are_refused(http: httpx.Client, path: str) -> None:
    for field, value in (("files", {path: ""}), ("fetch_files", [path])):
        response = http.post("/run_code", json={"code": "1", "language": "python", field: value})
        assert response.status_code == 422
        assert path in response.json()["detail"][0]["msg"]


@pytest.mark.parametrize("tier", ["landlock", "rlimits"])
def test_what_a_weaker_tier_cannot_do_is_refused_by_name(tier: str) -> None:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(server("--workers", "1", "--tier", tier))
        except AssertionError as error:
            pytest.skip(f"this machine grants no tier {tier}: {error}")
        http = stack.enter_context(httpx.Client(base_url=opened.url, timeout=300))
        for sent, part in (
            ({"language": "bash"}, "only the tier 'namespaces' allows"),
            ({"language": "cpp"}, "only the tier 'namespaces' allows"),
            ({"language": "python", "files": {"/tmp/x": ""}}, "in the tier 'namespaces' alone"),
            ({"language": "python", "fetch_files": ["/mnt/x"]}, "in the tier 'namespaces' alone"),
        ):
            response = http.post("/run_code", json={"code": "1", **sent})
            assert response.status_code == 422
            assert part in response.json()["detail"][0]["msg"]
        entries = [{"type": "cpp", "solution": "int main() {}"}, {"type": "python", "solution": "print(1)"}]
        first, second = http.post("/run/batch", json={"submissions": entries}).json()["results"]
        assert (first["reason"], second["stdout"]) == ("invalid_input", "1\n")


@pytest.mark.skipif(importlib.util.find_spec("pytest") is None, reason="pytest is not installed")
def test_pytest_as_a_language(http: httpx.Client) -> None:
    code = (
        "import pytest\nfrom helper import one\n\n"
        "def test_prints(capfd, tmp_path):\n    (tmp_path / 'a').write_text('b')\n    print('seen')\n"
        "    assert capfd.readouterr().out == 'seen\\n'\n\n"
        "def test_wrong():\n    assert one == 2\n"
    )
    files = {"helper.py": encoded(b"one = 1\n")}
    failed = ask(http, code, "pytest", files=files)
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 1)
    assert "assert 1 == 2" in failed["run_result"]["stdout"]
    assert "1 failed, 1 passed" in failed["run_result"]["stdout"]
    arguments = ["-k", "test_prints", "--junitxml=a report; touch never.xml"]
    passed = ask(
        http, code, "pytest", files=files, args=arguments, fetch_files=["a report; touch never.xml", "never.xml"]
    )
    assert (passed["status"], passed["run_result"]["return_code"]) == ("Success", 0)
    assert list(passed["files"]) == ["a report; touch never.xml"]


@pytest.mark.usefixtures("namespaces")
def test_bash_as_a_language(http: httpx.Client) -> None:
    ran = ask(
        http,
        'read line\necho "got $line"\ncat a/b | tr x y\nexit 4',
        "bash",
        stdin="in\n",
        files={"a/b": encoded(b"xx")},
    )
    assert ran["run_result"]["stdout"] == "got in\nyy"
    assert (ran["status"], ran["run_result"]["return_code"]) == ("Failed", 4)
    assert ask(http, "test 1 -eq 1", "bash")["status"] == "Success"
    assert "syntax error" in ask(http, "if [", "bash")["run_result"]["stderr"]
    assert ask(http, "sleep 600", "bash", run_timeout=0.3)["run_result"]["status"] == "TimeLimitExceeded"
    assert ask(http, "yes | head -n 1", "bash")["run_result"]["stdout"] == "y\n"
    assert ask(http, "id -u; ls /root /home 2>&1; cat /etc/shadow", "bash")["run_result"]["return_code"] != 0


@pytest.fixture
def compiler(http: httpx.Client, namespaces: None) -> None:
    """Skips where there is none."""
    response = http.post("/run_code", json={"code": "int main() {}", "language": "cpp", "compile_timeout": SECONDS})
    if response.status_code == 422:
        assert "it needs g++" in response.text
        pytest.skip("there is no g++")


@pytest.mark.usefixtures("compiler")
def test_cpp_as_a_language(http: httpx.Client) -> None:
    adds = '#include <cstdio>\nint main() { int a; std::scanf("%d", &a); std::printf("%d\\n", a + 1); return a == 3; }'
    ran = ask(http, adds, "cpp", stdin="6")
    assert (ran["status"], ran["compile_result"]["return_code"], ran["run_result"]["stdout"]) == ("Success", 0, "7\n")
    failed = ask(http, adds, "cpp", stdin="3")
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 1)
    wrong = ask(http, "int main() { object i = ?; }", "cpp")
    assert (wrong["status"], wrong["compile_result"]["status"], wrong["run_result"]) == ("Failed", "Finished", None)
    assert wrong["compile_result"]["return_code"] != 0
    assert "error" in wrong["compile_result"]["stderr"]
    late = ask(http, "#include <unistd.h>\nint main() { sleep(600); }", "cpp", run_timeout=0.3)
    assert (late["compile_result"]["return_code"], late["run_result"]["status"]) == (0, "TimeLimitExceeded")
    asserts = ask(http, "#include <cassert>\nint main() { assert(1 == 2); }", "cpp")
    assert (asserts["status"], asserts["run_result"]["return_code"]) == ("Failed", -6)
    assert "Assertion" in asserts["run_result"]["stderr"]
    slow = ask(http, "#include <bits/stdc++.h>\nint main() {}", "cpp", compile_timeout=0.01)
    assert (slow["status"], slow["compile_result"]["status"]) == ("Failed", "TimeLimitExceeded")


@pytest.mark.usefixtures("namespaces")
def test_what_a_program_leaves_running_is_ended(http: httpx.Client) -> None:
    leaves = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    ran = ask(http, f"import subprocess, sys\n{leaves}\nprint('done')")
    assert (ran["status"], ran["run_result"]["stdout"]) == ("Success", "done\n")


def notebook(http: httpx.Client, *cells: str, **more: Any) -> dict[str, Any]:
    response = http.post("/run_jupyter", json={"cells": cells, "total_timeout": SECONDS, **more})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_notebook_keeps_variables_and_goes_on_after_an_error(http: httpx.Client) -> None:
    ran = notebook(
        http,
        "a = 'hello'",
        "import sys\nn = sys.stderr.write('warned\\n')",
        "sys.stderr.write('first\\n')\nraise KeyError('no')",
        "a",
        "print(a)\n{}['x']\n",
        "1 +",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('two\\nlines') from error",
    )
    assert (ran["status"], ran["message"], ran["files"]) == ("Success", "", {})
    assert (ran["driver"]["status"], ran["driver"]["return_code"]) == ("Finished", 0)
    quiet, warned, raised, shown, printed, wrong, chained = ran["cells"]
    assert quiet == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert (warned["stderr"], warned["error"]) == ("warned\n", [])
    assert (raised["stderr"], raised["error"][0]["ename"], raised["error"][0]["evalue"]) == (
        "first\n",
        "KeyError",
        "'no'",
    )
    assert raised["error"][0]["traceback"][0] == "Traceback (most recent call last):"
    assert shown["display"] == [{"text/plain": "'hello'"}]
    assert (printed["stdout"], printed["error"][0]["ename"]) == ("hello\n", "KeyError")
    assert (wrong["error"][0]["ename"], wrong["error"][0]["evalue"]) == ("SyntaxError", "invalid syntax")
    assert (chained["stderr"], chained["error"][0]["evalue"]) == ("", "two\nlines")
    assert chained["error"][0]["traceback"].count("Traceback (most recent call last):") == 2


def test_a_notebooks_files(http: httpx.Client) -> None:
    code = "import os\nopen('out', 'w').write(open('in/a').read() * 2)\nos.mkdir('b')\nos.chdir('b')"
    ran = notebook(http, code, files={"in/a": encoded(b"xy")}, fetch_files=["out", "in/a", "absent", "b"])
    assert ran["files"] == {"out": encoded(b"xyxy"), "in/a": encoded(b"xy")}


def test_a_notebook_can_neither_break_nor_forge_the_files_that_are_fetched(http: httpx.Client) -> None:
    for cell in (
        "import builtins\nbuiltins.open = None",
        'import json\njson.dumps = lambda _: \'{"a": 1, "other": "x"}\'',
    ):
        ran = notebook(http, cell, files={"a": encoded(b"x")}, fetch_files=["a"])
        assert (ran["status"], ran["files"]) == ("Success", {"a": encoded(b"x")})


def test_a_notebook_whose_cell_ends_its_interpreter(http: httpx.Client) -> None:
    ran = notebook(http, "import os; os._exit(3)", "1")
    assert (ran["status"], ran["driver"]["return_code"]) == ("Failed", 1)
    assert ran["cells"][-1]["error"][0]["ename"] == "DeadKernelError"


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_notebooks_figures(http: httpx.Client) -> None:
    ran = notebook(http, "import matplotlib.pyplot as plt", "plt.plot([1, 2], [2, 3])\nplt.title('t')\nplt.show()", "1")
    figures = [[shown for shown in cell["display"] if "image/png" in shown] for cell in ran["cells"]]
    assert [len(found) for found in figures] == [0, 1, 0]
    assert base64.b64decode(figures[1][0]["image/png"]).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("sent", "where"),
    [
        ({}, ["cells"]), ({"cells": "1"}, ["cells"]), ({"cells": ["1"], "kernel": "ir"}, ["kernel"]),
        ({"cells": ["1"], "cell_timeout": -1}, ["cell_timeout"]),
        ({"cells": ["1"], "total_timeout": 1e9}, ["total_timeout"]),
        ({"cells": ["1", "x" * 10_000_000]}, ["cells", 1]), ({"cells": ["1"], "files": {"../a": ""}}, ["files"]),
    ],
)  # fmt: skip
def test_a_notebook_that_is_refused(http: httpx.Client, sent: dict[str, Any], where: list[str | int]) -> None:
    response = http.post("/run_jupyter", json=sent)
    assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", *where])
