"""The service's own API, over a real server process."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from servers.serving import Server, server


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server("--workers", "2", "--timeout", "60") as made:
        yield made


@pytest.fixture(scope="module")
def http(running: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=120) as client:
        yield client


def test_the_start_says_where_with_what_and_how_many(running: Server) -> None:
    assert re.search(r"listening on http://127\.0\.0\.1:\d+ · tier \w+ · 2 workers · no token", running.said)


def test_the_start_names_what_the_tier_leaves_open() -> None:
    with server("--workers", "1", "--tier", "rlimits") as made:
        said = made.stop()[1]
    assert "tier rlimits leaves open in files: ordinary permissions alone guard them" in said
    assert "tier rlimits leaves open in processes: " in said


def test_a_call(http: httpx.Client) -> None:
    response = http.post("/v1/run", json={"code": "print(input())\n1 + 1", "stdin": "é"})
    assert response.status_code == 200
    result = response.json()
    assert result["seconds"] > 0
    assert result["peak_memory"] > 1 << 20
    tier = http.get("/health").json()["tier"]
    known = {"status": "ok", "error_type": None, "stdout": "é\n", "stderr": "", "value": "2", "exit_code": 0}
    assert result == known | {k: result[k] for k in ("seconds", "peak_memory")} | {"tier": tier, "files": {}}


def test_a_program_that_fails_is_an_answer_and_no_error(http: httpx.Client) -> None:
    for code, status, error_type in (
        ("1 / 0", "error", "ZeroDivisionError"),
        ("print(no Python)", "error", "SyntaxError"),
    ):
        response = http.post("/v1/run", json={"code": code})
        assert (response.status_code, response.json()["status"], response.json()["error_type"]) == (
            200,
            status,
            error_type,
        )


def test_limits_files_and_what_is_fetched(http: httpx.Client) -> None:
    body = {
        "code": "data = open('in/a').read()\nopen('out', 'w').write(data * 2)\nwhile True: pass",
        "files": {"in/a": base64.b64encode(b"xy").decode()},
        "fetch": ["out", "absent"],
        "limits": {"cpu_seconds": 1},
        "echo": False,
    }
    result = http.post("/v1/run", json=body).json()
    assert (result["status"], result["stderr"]) == ("timeout", "TimeoutError: no end after 1 s of CPU time\n")
    assert {name: base64.b64decode(text) for name, text in result["files"].items()} == {"out": b"xyxy"}
    late = http.post("/v1/run", json={"code": "import time; time.sleep(60)", "timeout": 0.2}).json()
    assert late["status"] == "timeout"


def test_a_batch_is_answered_in_order(http: httpx.Client) -> None:
    calls = [{"code": "import time; time.sleep(.2); print(0)"}, *({"code": f"print({i})"} for i in range(1, 20))]
    results = http.post("/v1/batch", json={"calls": calls}).json()["results"]
    assert [result["stdout"] for result in results] == [f"{i}\n" for i in range(20)]


def test_a_streamed_batch_is_answered_as_each_ends(http: httpx.Client) -> None:
    calls = [{"code": "import time; time.sleep(60)", "timeout": 2.0}, *({"code": f"print({i})"} for i in range(1, 6))]
    with http.stream("POST", "/v1/batch", json={"calls": calls, "stream": True}) as response:
        assert response.headers["content-type"].startswith("application/x-ndjson")
        lines = [json.loads(line) for line in response.iter_lines()]
    assert {line["index"] for line in lines} == set(range(6))
    assert lines[-1]["index"] == 0
    assert lines[-1]["result"]["status"] == "timeout"
    assert all(line["result"]["stdout"] == f"{line['index']}\n" for line in lines[:-1])


BAD: list[tuple[str, Any, int, str | None, str]] = [
    ("/v1/run", {}, 422, "code", "missing"),
    ("/v1/run", [], 422, None, "object"),
    ("/v1/run", {"code": ""}, 422, "code", "no code"),
    ("/v1/run", {"code": "a\0b"}, 422, "code", "NUL at character 1"),
    ("/v1/run", {"code": 3}, 422, "code", "str"),
    ("/v1/run", {"code": "x" * 10_000_000}, 422, "code", "10000000 characters"),
    ("/v1/run", {"cod": "1"}, 422, "cod", "did you mean 'code'?"),
    ("/v1/run", {"code": "1", "tiemout": 1}, 422, "tiemout", "did you mean 'timeout'?"),
    ("/v1/run", {"code": "1", "timeout": -1}, 422, "timeout", "> 0"),
    ("/v1/run", {"code": "1", "timeout": 1e9}, 422, "timeout", "600 s at most"),
    ("/v1/run", {"code": "1", "memory": 1.5}, 422, "memory", "int"),
    ("/v1/run", {"code": "1", "tier": "namespace"}, 422, "tier", "did you mean 'namespaces'?"),
    ("/v1/run", {"code": "1", "limits": {"memory": 1}}, 422, "limits.memory", "did you mean 'memory_mb'?"),
    ("/v1/run", {"code": "1", "limits": {"wall_seconds": 1e9}}, 422, "limits.wall_seconds", "at most"),
    ("/v1/run", {"code": "1", "limits": {"output_bytes": 10**9}}, 422, "limits.output_bytes", "67108864"),
    ("/v1/run", {"code": "1", "files": {"a": "", "a/b": ""}}, 422, "files", "that of another file"),
    ("/v1/run", {"code": "1", "files": {"é" * 200: ""}}, 422, "files", "too long"),
    ("/v1/run", {"code": "1", "files": {"../x": ""}}, 422, "files", "inside the scratch folder"),
    ("/v1/run", {"code": "1", "files": {"a": "%%"}}, 422, "files.a", "base64"),
    ("/v1/run", {"code": "1", "files": {"\ud800": ""}}, 422, "files", "Unicode"),
    ("/v1/run", {"code": "1", "fetch": "a"}, 422, "fetch", "array"),
    ("/v1/run", {"code": "1", "\ud800": 1}, 422, None, "not Unicode"),
    ("/v1/batch", {"calls": []}, 422, "calls", ">= 1"),
    ("/v1/batch", {"calls": [{"code": "1"}, {"code": ""}]}, 422, "calls[1].code", "no code"),
    ("/v1/sessions/none/run", {"code": "1"}, 404, None, "no session 'none'"),
    ("/v1/rn", {}, 404, None, "did you mean '/v1/run'?"),
    ("/health", {}, 405, None, "does not take POST"),
]


@pytest.mark.parametrize(("path", "body", "status", "field", "part"), BAD)
def test_a_bad_request_is_refused_by_field(
    http: httpx.Client, path: str, body: Any, status: int, field: str | None, part: str
) -> None:
    response = http.post(path, content=json.dumps(body))
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["field"] == field
    assert part in error["message"]
    assert http.post("/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"


def test_a_body_that_is_too_long_is_refused() -> None:
    with server("--workers", "1", "--max-body", "1") as made, httpx.Client(base_url=made.url, timeout=120) as http:
        response = http.post("/v1/run", content=b" " * (3 << 20))
        assert response.status_code == 413
        assert "at most 1048576" in response.json()["error"]["message"]
        assert http.post("/run", content=b" " * (3 << 20)).status_code == 413
        assert http.post("/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"


def test_a_client_that_goes_away_ends_its_call() -> None:
    with server("--workers", "1", "--timeout", "600") as made:
        body = json.dumps({"code": "import time; time.sleep(600)"}).encode()
        with socket.create_connection(("127.0.0.1", made.port)) as raw:
            raw.sendall(b"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            with httpx.Client(base_url=made.url, timeout=120) as http:
                while "retcon_sandbox_running 1" not in http.get("/metrics").text:
                    pass
                raw.close()
                assert http.post("/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    with server("--workers", "1", "--queue", "1", "--timeout", "600") as made:
        slow = json.dumps({"code": "import time; time.sleep(600)"}).encode()
        request = b"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(slow), slow)
        with (
            socket.create_connection(("127.0.0.1", made.port)) as one,
            socket.create_connection(("127.0.0.1", made.port)) as two,
            httpx.Client(base_url=made.url, timeout=120) as http,
        ):
            one.sendall(request)
            two.sendall(request)
            while "retcon_sandbox_queue_length 1" not in http.get("/metrics").text:
                pass
            refused = http.post("/v1/run", json={"code": "1"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["type"] == "busy"
            judged = http.post("/run", json={"type": "python", "solution": "1"}).json()
            assert (judged["reason"], judged["success"], judged["run_success"]) == ("queue_timeout", False, False)
            assert http.get("/status").json() == {"queue": 1, "num_workers": 1}
            fused = http.post("/run_code", json={"code": "1", "language": "python"}).json()
            assert fused["status"] == "SandboxError"
            assert "try again later" in fused["message"]


def test_a_page_in_a_browser_cannot_run_programs(http: httpx.Client) -> None:
    """Any page may send such requests to a port of its reader's machine, or bring its own name to point there."""
    for origin in ("https://example.org", "null", "http://127.0.0.1"):
        for path in ("/v1/run", "/run", "/run_code", "/v1/sessions"):
            headers = {"Origin": origin, "Content-Type": "text/plain"}
            response = http.post(path, headers=headers, content=b'{"code": "print(1)"}')
            assert response.status_code == 403
            assert response.json()["error"]["type"] == "from_a_browser"


def test_a_token_is_asked_for() -> None:
    with server("--workers", "1", "--token", "s3cret") as made, httpx.Client(base_url=made.url, timeout=120) as http:
        assert http.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            for method, path in (("POST", "/v1/run"), ("POST", "/run"), ("POST", "/run_code"), ("GET", "/metrics")):
                response = http.request(method, path, headers=headers, json={"code": "1"})
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
        response = http.post("/v1/run", headers={"Authorization": "Bearer s3cret"}, json={"code": "print(1)"})
        assert response.json()["stdout"] == "1\n"
        headers = {"Authorization": "Bearer s3cret", "Origin": "https://example.org"}  # who has it may come as he likes
        assert http.post("/v1/run", headers=headers, json={"code": "print(1)"}).json()["stdout"] == "1\n"


LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')


def test_metrics_are_in_prometheus_text_format(http: httpx.Client) -> None:
    http.post("/v1/run", json={"code": "1 / 0"})
    response = http.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = response.text.splitlines()
    assert response.text.endswith("\n")
    families = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(families) == len(set(families))
    samples = [line for line in lines if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in samples)
    values = dict(line.rsplit(" ", 1) for line in samples)
    assert int(values['retcon_sandbox_calls_total{api="v1",status="error"}']) >= 1
    assert values["retcon_sandbox_workers"] == "2"
    buckets = [int(v) for k, v in values.items() if k.startswith("retcon_sandbox_call_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == int(values["retcon_sandbox_call_seconds_count"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_asked_to_stop_answers_what_it_has_begun(number: int) -> None:
    with server("--workers", "1") as made, socket.create_connection(("127.0.0.1", made.port)) as raw:
        body = json.dumps({"code": "import time; time.sleep(1); print('done')"}).encode()
        raw.sendall(b"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        while "retcon_sandbox_running 1" not in httpx.get(f"{made.url}/metrics").text:
            pass
        code, stderr = made.stop(number)
        assert code == 0
        assert "stopped" in stderr
        assert "Traceback" not in stderr
        assert b"done" in raw.recv(1 << 16)


def test_an_address_in_use_is_a_clear_error(running: Server) -> None:
    with pytest.raises(AssertionError, match=rf"cannot listen on 127\.0\.0\.1:{running.port}.*another --port"):
        Server(port=running.port)


def test_listening_to_everyone_without_a_token_is_warned_of() -> None:
    with server("--host", "0.0.0.0", "--workers", "1") as made:
        assert "anyone who reaches it can run programs" in made.stop()[1]
    with server("--host", "0.0.0.0", "--workers", "1", "--token", "x") as made:
        assert "WARNING: http://0.0.0.0" not in made.stop()[1]
