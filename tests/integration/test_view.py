"""`retcon view`: its server alone, and its page in a real Chromium where there is one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from retcon.core.types import Observation, Provenance, RepairRecord, Segment, ToolCall, TrainingRecord, Trajectory, Turn
from retcon.report.view.server import Viewer, make_app
from retcon.store import jsonl
from retcon.store.jsonl import line_of
from retcon.store.members import write_members

HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'</script>\x1b[31mred\u202eright to left"


def turn(code: str, output: str, error: str | None = None, kind: Any = "sampled", **more: Any) -> Turn:
    ids = tuple(range(10, 14))
    return Turn(
        segments=(
            Segment("sampled", "Now I run it. ", ids[:2], (-0.1, -0.2)),
            Segment(kind, code, ids, (-0.5, -1.5, -0.1, -3.0)),
            Segment("observation", output, (1, 2)),
        ),
        calls=(ToolCall(id="c", name="python", arguments={"code": code}, char=14),),
        observations=(Observation(call_id="c", text=output, status="error" if error else "ok", error_type=error),),
        **more,
    )  # fmt: skip


def rollout(number: int, made: Turn, **more: Any) -> Trajectory:
    prompt = (Segment("prompt", f"Problem {number}", (7, 8)),)
    about = Provenance(step=1, index=number)
    return Trajectory(f"zoo/1/{number}", "zoo", prompt, (made,), provenance=about, expected="42", **more)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "trajectories").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    lines = [{"step": n, "reward": n / 9, "wall_s": n * 2.0} for n in range(1, 9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = turn("print(zebra)", "name 'zebra' is not defined", "NameError")
    repair = RepairRecord(decision="shallow", attempts=1, similarity=0.9, reason="the next attempt worked")
    tried = (failed, turn("print('zebra')", "zebra"))
    fixed = turn("print('zebra')", "zebra", kind="spliced", abandoned=tried, repair=repair)
    rows = [
        rollout(0, fixed, reward=1.0, selection="kept", reason="equal", training=TrainingRecord(advantage=0.75)),
        rollout(1, turn(HOSTILE, HOSTILE, "ValueError"), reward=-1.0, selection="wrong"),
        *(rollout(n, turn("print(1)", "1"), reward=-1.0, selection="kept") for n in range(2, 300)),
        rollout(300, turn("print('x' * 10**7)", "x" * 10_000_000), reward=-1.0, selection="penalty"),
    ]
    write_members(folder / "trajectories/step-000001.jsonl.zst", map(line_of, rows))
    return folder


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    viewer = Viewer([run])
    viewer.runs[0].index.update()
    ready, ending = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        runner = web.AppRunner(make_app(viewer, "secret"))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.extend((asyncio.get_running_loop(), runner.addresses[0][1]))
        ready.set()
        await ending.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    viewer.follow()
    yield f"http://127.0.0.1:{found[1]}/secret/"
    found[0].call_soon_threadsafe(ending.set)
    thread.join(30)
    viewer.close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        body = answer.read()
        return json.loads(body) if answer.headers["Content-Type"].startswith("application/json") else body.decode()


def test_the_server_lists_counts_and_gives_lines(address: str, run: Path) -> None:
    assert get(address + "api/runs")[0]["rollouts"] == 301
    (row,) = get(address + "api/rows?text=zebra&failed=1")
    assert (row["name"], row["found"], row["expected"]) == ("zoo/1/0", ["words", "code", "output"], "42")
    counts = get(address + "api/counts?dropped=1")
    assert (counts["total"], counts["facets"]["selection"]) == (2, {"wrong": 1, "penalty": 1})
    assert get(address + f"api/line?run=0&id={row['id']}")["training"] == {"advantage": 0.75}
    assert len(get(address + "api/metrics?run=0")) == 8
    exported = urllib.request.urlopen(address + "api/export?verdict=right", timeout=30).read()
    assert exported == line_of(next(iter(jsonl.read(run / "trajectories/step-000001.jsonl"))))


def test_nothing_answers_without_the_token_and_faults_are_sentences(address: str) -> None:
    for url in (address.replace("secret", "public") + "api/runs", address + "../secret/../../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url, timeout=30)
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        get(address + "api/line?run=0&id=99999")
    assert json.loads(refused.value.read())["error"].endswith("there is no rollout 99999")


def test_the_page_names_no_other_place_and_has_no_inline_script(address: str) -> None:
    page = get(address)
    assert "http" not in page
    assert "<script>" not in page
    assert "innerHTML" not in get(address + "app.js")


def test_tags_are_kept_beside_the_run_and_filter(address: str, run: Path) -> None:
    said = {"run": 0, "id": "zoo/1/7", "tags": ["odd"], "note": "look again"}
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(address + "api/note", json.dumps(said).encode(), headers), timeout=30)
    assert [row["name"] for row in get(address + "api/rows?tag=odd")] == ["zoo/1/7"]
    assert json.loads((run / "notes.jsonl").read_text())["note"] == "look again"


def chromium() -> str:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright (pip install it)")
    if not chromium():
        pytest.skip("the page is tested in Chromium (apt-get install chromium, or CHROMIUM=its path)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1300, "height": 800})
        opened.set_default_timeout(60_000)
        wrong: list[str] = []
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("request", lambda asked: asked.url.startswith((address, "data:")) or wrong.append(asked.url))
        opened.goto(address)
        yield opened
        browser.close()
        assert wrong == [], "errors, and requests to other places"


def test_by_keyboard_from_a_search_to_the_tokens_of_a_splice(page: Any) -> None:
    page.wait_for_selector("[data-column=name]")
    page.keyboard.press("/")
    page.keyboard.type("zebra")
    page.wait_for_selector("[aria-rowcount='2']")
    assert page.url.endswith("#/list?text=zebra")
    page.keyboard.press("Escape")
    page.focus(".rows")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sides")
    assert page.inner_text(".side:nth-child(1) .call.failed").startswith("print(zebra)")
    assert page.inner_text(".splice") == "2 tokens sampled | 4 tokens spliced"
    page.keyboard.press("t")
    page.hover(".token.kind-spliced >> nth=1")
    facts = page.inner_text(".token-facts")
    assert "id 11 · spliced · log-prob -1.5000" in facts
    assert "under the lookahead's prefix -1.5000 · advantage 0.750 · mask 1" in facts
    page.keyboard.press("u")
    page.wait_for_selector("tr.dropped")
    assert "higher penalty" in page.inner_text("table")
    page.keyboard.press("g")
    page.wait_for_selector(".curve canvas")


def test_text_of_a_trajectory_is_text(page: Any) -> None:
    page.goto(page.url + "#/list?error=ValueError")
    page.click("[role=row] [data-column=name]")
    page.wait_for_selector(".call.failed")
    assert page.title() == "retcon view"
    shown = page.inner_text(".call.failed")
    assert "<script>document.title='owned'</script>␛[31mred⟨202e⟩right to left" in shown
    assert page.query_selector("main img, main script") is None


def test_a_line_of_ten_megabytes_is_cut_and_the_last_row_is_reached(page: Any) -> None:
    page.wait_for_selector("[data-column=name]")
    page.focus(".rows")
    page.keyboard.press("End")
    page.wait_for_selector("#row300 [data-column=name]")
    page.keyboard.press("Enter")
    page.wait_for_selector("button.more")
    assert "10,000,000 characters" in page.inner_text("button.more >> nth=-1")
