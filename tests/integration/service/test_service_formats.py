"""code-judge's and SandboxFusion's formats, field by field: rStar2-Agent's, CLEANER's and verl's clients read them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from servers.serving import server

RAN = {"sub_id", "success", "run_success", "cost", "stdout", "stderr", "reason"}
JUDGED = {"sub_id", "success", "run_success", "cost", "reason"}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with server("--workers", "2", "--timeout", "2") as made, httpx.Client(base_url=made.url, timeout=120) as client:
        yield client


def submission(solution: str, **more: Any) -> dict[str, Any]:
    return {"type": "python", "solution": solution, **more}


@pytest.mark.parametrize(
    ("sent", "success", "run_success", "reason", "stdout"),
    [
        (submission("print(1 + 1)"), True, True, "", "2\n"),
        (submission("1 + 1"), True, True, "", ""),  # a script's last expression is not echoed
        (submission("print(input())", input="9"), True, True, "", "9\n"),
        (submission("print(input())", input="9", expected_output="9"), True, True, "", "9\n"),
        (submission("print(9)", expected_output="  9\n\n"), True, True, "", "9\n"),
        (submission("print(8)", expected_output="9"), False, True, "", "8\n"),
        (submission("print(9); 1 / 0", expected_output="9"), False, False, "", "9\n"),
        (submission("import sys; sys.exit(3)"), False, False, "", ""),
        (submission("print(1"), False, False, "", ""),
        (submission(""), True, True, "", ""),
        (submission("print('Tool call success')\nraise ValueError"), False, False, "", "Tool call success\n"),
        (submission("while True: pass"), False, False, "worker_timeout", ""),
        (
            submission("print(1)", input=None, expected_output=None, options={"a": "b"}, unknown=[1]), True, True, "",
            "1\n",
        ),
        (submission("print(1)", input="\ud800"), False, False, "invalid_input", None),
    ],
)  # fmt: skip
def test_a_submission(
    http: httpx.Client, sent: dict[str, Any], success: bool, run_success: bool, reason: str, stdout: str | None
) -> None:
    answer = http.post("/run", content=json.dumps(sent)).json()
    assert answer.keys() == RAN
    assert (answer["success"], answer["run_success"], answer["reason"]) == (success, run_success, reason)
    assert answer["stdout"] == stdout
    assert isinstance(answer["cost"], float)
    judged = http.post("/judge", content=json.dumps(sent)).json()
    assert judged.keys() == JUDGED
    assert (judged["success"], judged["run_success"], judged["reason"]) == (success, run_success, reason)


def test_a_program_that_a_client_has_wrapped(http: httpx.Client) -> None:
    """rStar2-Agent's and CLEANER's clients send base64, print errors themselves and leave by os._exit."""
    wrapper = (
        "import base64, os, sys\nprogram = base64.b64decode('{}'.encode()).decode()\n"
        "try:\n    exec(compile(program, '<string>', 'exec'), {{}})\n"
        "except Exception as e:\n    print(f'{{type(e).__name__}}: {{e}}', file=sys.stderr)\n    os._exit(1)\n"
    )

    def wrapped(program: str) -> dict[str, Any]:
        return http.post("/run", json=submission(wrapper.format(base64.b64encode(program.encode()).decode()))).json()

    assert wrapped("import math\nprint(math.gcd(4, 6))")["stdout"] == "2\n"
    failed = wrapped("print('before', flush=True)\n1 / 0")
    assert (failed["run_success"], failed["stdout"], failed["stderr"]) == (
        False,
        "before\n",
        "ZeroDivisionError: division by zero\n",
    )


@pytest.mark.parametrize("path", ["/run/batch", "/run/long-batch"])
def test_a_batch_keeps_ids_and_order(http: httpx.Client, path: str) -> None:
    sent = [submission(f"print({i})", sub_id=f"s{i}") for i in range(30)]
    answer = http.post(path, json={"type": "batch", "sub_id": "b", "submissions": sent}).json()
    assert answer.keys() == {"sub_id", "results"}
    assert answer["sub_id"] == "b"
    assert [(r["sub_id"], r["stdout"]) for r in answer["results"]] == [(f"s{i}", f"{i}\n") for i in range(30)]
    assert all(result.keys() == RAN for result in answer["results"])
    unnamed = http.post(path, json={"submissions": [submission("1"), submission("1")]}).json()
    assert len({unnamed["sub_id"], *(r["sub_id"] for r in unnamed["results"])}) == 3


@pytest.mark.parametrize("path", ["/judge/batch", "/judge/long-batch"])
def test_a_judged_batch(http: httpx.Client, path: str) -> None:
    sent = [submission("print(1)", expected_output="1"), submission("print(1)", expected_output="2")]
    results = http.post(path, json={"type": "batch", "submissions": sent}).json()["results"]
    assert [result["success"] for result in results] == [True, False]
    assert all(result.keys() == JUDGED for result in results)


@pytest.mark.parametrize(
    ("path", "sent", "where", "part"),
    [
        ("/run", submission("1") | {"type": "math"}, ["type"], "type 'math' is not served here: only python and cpp"),
        ("/run", {"type": "python"}, ["solution"], "missing"),
        ("/run", submission("1", input=3), ["input"], "str"),
        ("/run/batch", {"type": "batch", "submissions": []}, ["submissions"], ">= 1"),
        ("/run_code", {"code": "1", "language": "go"}, ["language"], "language 'go' is not served here"),
        ("/run_code", {"code": "1", "language": "pyton"}, ["language"], "did you mean 'python'?"),
        ("/run_code", {"code": "1"}, ["language"], "missing"),
        ("/run_code", {"code": "1", "language": "python", "run_timeout": -1}, ["run_timeout"], "> 0"),
        ("/run_code", {"code": "1", "language": "python", "files": {"../a": ""}}, ["files"], "inside the scratch"),
    ],
)
def test_what_is_refused_has_the_shape_of_those_services(
    http: httpx.Client, path: str, sent: dict[str, Any], where: list[str | int], part: str
) -> None:
    response = http.post(path, json=sent)
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert detail["loc"] == ["body", *where]
    assert part in detail["msg"]


def test_status_and_ping(http: httpx.Client) -> None:
    assert http.get("/status").json() == {"queue": 0, "num_workers": 2}
    assert http.get("/ping").json() == http.get("/v1/ping").json() == "pong"


def verl_payload(code: str, **more: Any) -> dict[str, Any]:
    """All that verl's client sends."""
    fixed = {"compile_timeout": 10, "run_timeout": 10, "stdin": None, "memory_limit_MB": 1024, "language": "python"}
    return fixed | {"code": code, "files": {}, "fetch_files": []} | more


def test_run_code_that_works(http: httpx.Client) -> None:
    answer = http.post("/run_code", json=verl_payload("print(input())\n5", stdin="in")).json()
    assert (
        answer.pop("run_result").items()
        >= {
            "status": "Finished", "return_code": 0, "stdout": "in\n", "stderr": "",
        }.items()
    )  # fmt: skip
    assert answer == {
        "status": "Success", "message": "", "compile_result": None, "executor_pod_name": None, "files": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "more", "status", "return_code"),
    [
        ("1 / 0", {}, "Finished", 1),
        ("import sys; sys.exit(7)", {}, "Finished", 7),
        ("import os; os.abort()", {}, "Finished", -6),
        ("print(1", {}, "Finished", 1),
        ("x = bytearray(2 << 30)", {"memory_limit_MB": 64}, "Finished", 1),
        ("print('kept', flush=True)\nwhile True: pass", {"run_timeout": 0.5}, "TimeLimitExceeded", None),
    ],
)
def test_run_code_that_fails(
    http: httpx.Client, code: str, more: dict[str, Any], status: str, return_code: int | None
) -> None:
    answer = http.post("/run_code", json=verl_payload(code, **more)).json()
    assert (answer["status"], answer["message"]) == ("Failed", "")
    assert answer["run_result"].keys() == {"status", "execution_time", "return_code", "stdout", "stderr"}
    assert (answer["run_result"]["status"], answer["run_result"]["return_code"]) == (status, return_code)
    assert answer["run_result"]["execution_time"] > 0


def test_run_code_carries_files_both_ways(http: httpx.Client) -> None:
    code = "open('out.bin', 'wb').write(open('in/a.bin', 'rb').read()[::-1])"
    sent = {"in/a.bin": base64.b64encode(b"\0\xff").decode(), "none": None}
    answer = http.post("/run_code", json=verl_payload(code, files=sent, fetch_files=["out.bin", "absent"])).json()
    assert answer["files"] == {"out.bin": base64.b64encode(b"\xff\0").decode()}
