"""`retcon view`: its server alone, and its page in a real Chromium where there is one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.core.types import (
    Observation,
    Parent,
    Provenance,
    RepairRecord,
    Segment,
    ToolCall,
    TrainingRecord,
    Trajectory,
    Turn,
)
from retcon.report.view.export import write_view
from retcon.report.view.server import Viewer, make_app
from retcon.store import jsonl
from retcon.store.index import Query
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
    about = {"recipe": {"task": {"kind": "numbers", "name": "numbers"}}}  # as a manifest has it
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
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


@contextmanager
def serving(run: Path) -> Iterator[str]:
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


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with serving(run) as found:
        yield found


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


def send(url: str, **about: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(about).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def test_a_program_runs_again_in_the_sandbox(address: str) -> None:
    at = {"run": 0, "id": 1, "turn": 0, "call": 0}
    failed = send(address + "api/replay", **at, attempt=0)
    assert (failed["status"], failed["error_type"]) == ("error", "NameError")
    assert send(address + "api/replay", **at, attempt=-1)["text"] == "zebra"
    assert send(address + "api/replay", **at, attempt=-1, code="print(6 * 7)")["text"] == "42"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        send(address + "api/counterfactuals", run=0, id=1, turn=0)  # the run has no checkpoint


def test_requests_of_other_pages_change_nothing(address: str) -> None:
    headers = {"Content-Type": "application/json", "Origin": "http://elsewhere.example"}
    about = json.dumps({"run": 0, "id": 1}).encode()
    for what in ("change", "replay", "counterfactuals", "note"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(f"{address}api/{what}", about, headers), timeout=30)
    assert get(address + "api/row?run=0&id=1")["name"] == "zoo/1/0"


def test_a_rollout_is_redacted_and_deleted_and_its_link_still_finds_it(address: str, run: Path) -> None:
    assert send(address + "api/change", run=0, id=3, text="print(1)")["count"] == 2
    again = get(address + "api/row?run=0&id=3&name=zoo/1/2")
    assert (again["name"], again["id"] != 3) == ("zoo/1/2", True)
    assert "[redacted]" in json.dumps(get(address + "api/line?run=0&id=3&name=zoo/1/2"))
    send(address + "api/change", run=0, id=again["id"])
    assert len(list(jsonl.read(run / "trajectories/step-000001.jsonl"))) == 300


def test_the_terminal_redacts_and_deletes_and_finds_trees(run: Path) -> None:
    def show(*words: str) -> str:
        done = CliRunner().invoke(app, ["show", str(run), *words])
        assert done.exit_code == 0, done.output
        return done.output

    asked = Parent("zoo/2/0", turn=0, call="c")
    made = [replace(rollout(0, turn("2", "2")), id=f"zoo/2/{name}") for name in ("0", "1", "0/sub/0", "0/sub/1")]
    made[2:] = [replace(child, parent=asked) for child in made[2:]]
    write_members(run / "trajectories/step-000002.jsonl.zst", map(line_of, made))
    trees = show("--tree", "3")
    assert ("zoo/2/0" in trees, "zoo/2/1" in trees) == (True, False)
    assert "zoo/2/0" not in show("--tree", "4-")
    assert show("zoo/1/2", "--redact", "print(1)") == "zoo/1/2: replaced 2 times\n"
    assert "print(1)" not in show("zoo/1/2", "--raw")
    assert show("zoo/1/3", "--delete") == "zoo/1/3: deleted\n"
    done = CliRunner().invoke(app, ["show", str(run), "zoo/1/3"])
    assert (done.exit_code, "no trajectory 'zoo/1/3'" in str(done.exception)) == (1, True)


@pytest.mark.torch
def test_what_else_could_have_happened_is_rolled_out_from_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="rolling out needs the [train] extra")
    from retcon.config.load import load_recipe
    from retcon.train.rl import run_rl
    from retcon.train.sft import run_sft
    from training import make_base, make_demonstrations, small_recipe

    base = make_base(tmp_path / "base", positions=1024)
    cold = run_sft(small_recipe(base), make_demonstrations(base, tmp_path / "demonstrations.jsonl"), tmp_path / "cold")
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "go", "answer": "1"}\n' * 4)
    small = ["task.kind=file", f'task.path="{problems}"', "task.duplicates=keep", "task.evaluation_share=0",
             "rl.steps=1", "rl.prompts=2", "rl.group=8", "rollout.max_tokens=600", "rollout.lookahead_tokens=0",
             "sandbox.workers=1", "sandbox.output_chars=100", "compute.device=cpu"]  # fmt: skip
    run_rl(load_recipe("mini/grpo", small), cold, tmp_path / "out")
    with serving(tmp_path / "out") as address:
        row = get(address + "api/rows?failed=1")[0]
        line = get(address + f"api/line?run=0&id={row['id']}")
        failed = [any(o["status"] == "error" for o in t.get("observations", ())) for t in line["turns"]].index(True)
        found = send(address + "api/counterfactuals", run=0, id=row["id"], turn=failed, times=2)
        assert (found["checkpoint"], {way: about["made"] for way, about in found["ways"].items()}) == (
            "final", {"fresh": 2, "raw": 2},
        )  # fmt: skip
        with browsing(address) as page:  # which shows the answer that the server gave
            page.route("**/api/counterfactuals", lambda route: route.fulfill(json=found))
            page.evaluate("where => { location.hash = where }", f"#/one/0/{row['id']}")
            page.click(f"section[aria-label='turn {failed + 1}'] button:has-text('what else could have happened?')")
            page.wait_for_selector(".counterfactuals td.num")
            assert page.inner_text(".counterfactuals h3") == "what else could have happened, from final"


def test_a_selection_is_exported_as_pairs_demonstrations_and_parquet(address: str, tmp_path: Path) -> None:
    def export(**query: str) -> bytes:
        url = address + "api/export?" + urllib.parse.urlencode(query)
        return bytes(urllib.request.urlopen(url, timeout=60).read())

    (pair,) = map(json.loads, export(format="pairs", text="zebra").splitlines())
    assert ("print(zebra)" in pair["rejected"], "print('zebra')" in pair["chosen"]) == (True, True)
    assert [json.loads(line)["id"] for line in export(format="demonstrations").splitlines()] == ["zoo/1/0"]
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "some.parquet").write_bytes(export(format="parquet", text="zebra"))
    assert parquet.read_table(tmp_path / "some.parquet").column("id").to_pylist() == ["zoo/1/0"]
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        export(format="pairs", verdict="wrong")
    assert b"no pairs in this selection" in refused.value.read()


def chromium() -> str:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


@contextmanager
def browsing(address: str, **about: Any) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright (pip install it)")
    if not chromium():
        pytest.skip("the page is tested in Chromium (apt-get install chromium, or CHROMIUM=its path)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(**{"viewport": {"width": 1300, "height": 800}, **about})
        opened.set_default_timeout(60_000)
        wrong: list[str] = []
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        here = (address.removesuffix("index.html"), "data:")
        opened.on("request", lambda asked: asked.url.startswith(here) or wrong.append(asked.url))
        opened.goto(address)
        yield opened
        browser.close()
        assert wrong == [], "errors, and requests to other places"


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    with browsing(address) as opened:
        yield opened


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


def test_what_a_search_finds_is_shown_before_its_counts(page: Any) -> None:
    page.wait_for_selector("[data-column=name]")
    page.route("**/api/counts?text=*", lambda route: None)  # which are not answered
    page.fill("#search", "zebra")
    page.wait_for_selector("[aria-rowcount='2'] [data-column=name]")


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


def test_an_exported_view_opens_from_disk(run: Path, tmp_path: Path) -> None:
    viewer = Viewer([run])
    viewer.runs[0].index.update()
    numbers = viewer.runs[0].index.numbers(Query())
    assert write_view(viewer, tmp_path / "out", [numbers[:40]]) == 40
    with browsing((tmp_path / "out/index.html").as_uri()) as page:
        page.wait_for_selector("[aria-rowcount='41']")
        page.keyboard.press("/")
        page.keyboard.type("zebr")
        page.wait_for_selector("[aria-rowcount='2']")
        assert page.inner_text(".cell em") == "in words, code, output"
        page.keyboard.press("Escape")
        page.focus(".rows")
        page.keyboard.press("Enter")
        page.wait_for_selector(".side .call.failed")
        assert page.query_selector(".replay, .note") is None
        page.click("text=does it come back?")
        page.wait_for_selector("[aria-rowcount='2']")
        page.evaluate("location.hash = '#/one/0/9?name=zoo%2F1%2F30'")
        page.wait_for_selector("text=zoo/1/30")
        page.keyboard.press("p")
        page.wait_for_selector("text=1 of 40")


def test_failures_lead_to_their_rollouts_and_a_program_is_replayed(page: Any) -> None:
    page.wait_for_selector("[data-column=name]")
    page.keyboard.press("f")
    page.click(".message a:has-text('NameError')")
    page.wait_for_selector("[aria-rowcount='2']")
    page.click("[role=row] [data-column=name]")
    page.click(".call.failed button:has-text('replay')")
    page.click("text=run in the sandbox")
    page.wait_for_selector(".replay .seen:has-text('NameError')")


def test_a_file_without_trajectories_says_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "clean.jsonl"
    file.write_text('{"messages": []}\n' * 3, encoding="utf-8")
    with serving(file) as address:
        assert get(address + "api/runs")[0]["problems"] == ["none of its first 3 lines is a trajectory"]
        with browsing(address) as page:
            page.wait_for_selector(".empty:has-text('clean.jsonl: none of its first 3 lines is a trajectory')")


def test_a_record_without_rewards_is_not_wrong_and_has_its_models_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokens are shown with the package tokenizers")
    record = tmp_path / "record"
    record.mkdir()
    vocabulary = {f"<{n}>": n for n in range(20)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<0>")).save(str(tmp_path / "tokenizer.json"))
    prompt = (Segment("prompt", "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n", (7, 8)),)
    made = replace(rollout(0, turn("2", "2")), prompt=prompt, provenance=Provenance(model=str(tmp_path)))
    (record / "trajectories.jsonl").write_bytes(line_of(made))
    with serving(record) as address:
        assert get(address + "api/rows")[0]["question"] == "How many?"
        assert get(address + "api/tokens?run=0&id=1")[0] == ["<7>", "<8>"]
        with browsing(address) as page:
            page.evaluate("location.hash = '#/problems'")
            page.wait_for_selector("td:text-is('1 not judged')")
            page.click("text=zoo")
            page.wait_for_selector("text=1 rollout; mean reward –")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1300, "dark"), (1300, "light")])
def test_no_page_is_wider_than_the_screen(address: str, width: int, scheme: str) -> None:
    with browsing(address, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        page.wait_for_selector("[data-column=name]")
        for where in ("list?failed=1", "one/0/1", "group/0/zoo/1", "failures", "problems", "runs"):
            page.evaluate("where => { location.hash = '#/' + where }", where)
            page.wait_for_selector("main h1, main .status b")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
            assert dark == (scheme == "dark")


def test_rollouts_appear_while_a_run_is_being_written(page: Any, run: Path) -> None:
    page.wait_for_selector("[aria-rowcount='302']")
    more = [replace(rollout(n, turn("print(2)", "2")), id=f"zoo/2/{n}") for n in range(5)]
    write_members(run / "trajectories/step-000002.jsonl.zst", map(line_of, more))
    page.wait_for_selector("[aria-rowcount='307']")


def test_a_truncated_and_a_damaged_file_are_shown_as_far_as_they_go(run: Path) -> None:
    file = run / "trajectories/step-000002.jsonl.gz"
    write_members(file, [line_of(replace(rollout(n, turn("2", "2")), id=f"zoo/2/{n}")) for n in range(9)])
    (run / "trajectories/step-000003.jsonl.gz").write_bytes(file.read_bytes()[:-30])
    (run / "trajectories/step-000004.jsonl.gz").write_bytes(file.read_bytes() + b"damage" * 99)
    viewer = Viewer([run])
    viewer.runs[0].index.update()
    (about,) = viewer.overview()
    assert about["rollouts"] > 301 + 9 + 9
    assert "step-000004.jsonl.gz: " in "".join(about["problems"])
