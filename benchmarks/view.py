#!/usr/bin/env python
"""Speed of the index and `retcon view` on 100,000 rollouts.

benchmarks/view.py make 100000 runs/view          # a run folder with that many rollouts, about 6 KB each
benchmarks/view.py index runs/view                # MB/s, and the slowest of 200 filters and searches
benchmarks/view.py page runs/view                 # the page's times and memory: playwright, CHROMIUM, psutil
benchmarks/view.py pictures runs/ours runs/theirs docs/img   # of docs/view.md: playwright, CHROMIUM=its path
benchmarks/view.py against runs/view inspect      # beside `inspect view`: playwright, CHROMIUM, inspect-ai, psutil
benchmarks/view.py storing recipes/mini/cleaner.toml MODEL runs/storing   # a training with all stored against nothing
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from retcon.core.types import (
    Observation,
    Provenance,
    RepairRecord,
    Segment,
    ToolCall,
    TrainingRecord,
    Trajectory,
    Turn,
)
from retcon.store import jsonl
from retcon.store.index import Index, Query
from retcon.store.jsonl import line_of
from retcon.store.members import write_members

GROUP, PROMPTS = 16, 8
TEMPLATES = 480
LONG = 1_100_000
"""Makes the last line 1 MB; the others have 9,300 bytes."""
ERRORS = (
    ("NameError", "name 'undefined_total' is not defined", "print(undefined_total)"),
    ("IndexError", "list index out of range", "print(values[17])"),
    ("ValueError", "invalid literal for int() with base 10: 'x7'", "print(int('x7'))"),
)


def segment(kind: Any, text: str, rng: random.Random) -> Segment:
    ids = tuple(rng.randrange(50_000) for _ in range(max(1, len(text) // 4)))
    probabilities = tuple(-round(rng.expovariate(3), 6) for _ in ids) if kind in ("sampled", "spliced") else None
    return Segment(kind=kind, text=text, ids=ids, logprobs=probabilities)


def program(rng: random.Random, bad: str) -> str:
    values = [rng.randint(2, 99) for _ in range(6)]
    lines = [
        f"# step {rng.randint(1, 3)} of problem @NNNN@",
        f"values = {values}",
        "total = 0",
        "for j, v in enumerate(values):",
        f"    total += v * (j + {rng.randint(1, 9)}) % {rng.randint(5, 50)}",
        "    print('term', j, v, total)",
        "mean = total / len(values)",
        bad,
        "print('total', total, 'mean', round(mean, 3))",
    ]
    return "\n".join(line for line in lines if line)


def called(
    rng: random.Random, code: str, error: tuple[str, str, str] | None, kind: Any = "sampled", **more: Any
) -> Turn:
    words = "I will compute this part of problem @NNNN@ with Python. First I list the values, "
    words += "then I add the weighted terms.\n"
    call = f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"
    output = "\n".join(f"term {n} {rng.randint(2, 99)} {rng.randint(9, 400)}" for n in range(6))
    if error:
        output += f'\nTraceback (most recent call last):\n  File "<tool>", line 8, in <module>\n{error[0]}: {error[1]}'
    else:
        output += f"\ntotal {rng.randint(90, 900)} mean {rng.randint(9, 99)}.5"
    seen = Observation(
        call_id="c", text=output, status="error" if error else "ok", error_type=error[0] if error else None,
        seconds=round(rng.random() / 9, 4),
    )  # fmt: skip
    prose = segment("sampled", words, rng)
    return Turn(
        segments=(prose, segment(kind, call, rng), segment("scaffold", "<|im_end|>\n", rng),
                  segment("observation", output, rng)),
        calls=(ToolCall(id="c", name="python", arguments={"code": code}, char=len(words), start=len(prose.ids or ())),),
        observations=(seen,), stop="call", **more,
    )  # fmt: skip


def template(number: int, count: int = 2) -> bytes:
    rng = random.Random(number)
    turns = []
    for _ in range(count):
        error = ERRORS[rng.randrange(3)] if rng.random() < 0.25 else None
        code = program(rng, "")
        if error is None:
            turns.append(called(rng, code, None))
            continue
        failed = called(rng, program(rng, error[2]), error)
        if rng.random() < 0.6:
            fix = called(rng, code, None)
            repair = RepairRecord(
                decision="shallow" if rng.random() < 0.7 else "deep", attempts=1, similarity=round(rng.random(), 3),
                reason="the next attempt worked",
            )  # fmt: skip
            turns.append(called(rng, code, None, "spliced", abandoned=(failed, fix), repair=repair))
        else:
            turns.append(failed)
    right = rng.random() < 0.5
    end = Turn(segments=(segment("sampled", f"The totals are checked, so the answer is \\boxed{{{number}}}.", rng),))
    kept = rng.random() < 0.5
    question = (
        "<|im_start|>user\nProblem @NNNN@: add the weighted terms of the list and report the total as an integer."
    )
    made = Trajectory(
        id="@ID@", task="weighted/@T@", prompt=(segment("prompt", question, rng),), turns=(*turns, end),
        reward=1.0 if right else -1.0, provenance=Provenance(seed=number, step=777_777, index=666_666),
        answer=str(number), expected=str(number if right else number + 1), reason="equal" if right else "not equal",
        selection="kept" if kept else rng.choice(("penalty", "drawn")) if right else "wrong",
        training=TrainingRecord(
            advantage=round(rng.gauss(0, 1), 4) if kept else None, staleness=0, seconds=round(rng.random() * 9, 3)
        ),
    )  # fmt: skip
    return line_of(made)


def make(count: int, out: Path) -> None:
    """Write a run folder of so many rollouts."""
    templates = [template(number) for number in range(TEMPLATES)]
    long = template(1, 2 * LONG * TEMPLATES // sum(map(len, templates)))
    folder = out / "trajectories"
    folder.mkdir(parents=True, exist_ok=True)
    of_a_step = GROUP * PROMPTS
    written = 0

    def lines(step: int) -> Iterator[bytes]:
        nonlocal written
        for member in range(min(of_a_step, count - written)):
            number = written = written + 1
            prompt, index = divmod(member, GROUP)
            line = long if number == count else templates[number * 7 % TEMPLATES]
            task = (step * PROMPTS + prompt) % 500
            line = line.replace(b"@ID@", b"weighted/%d/%d/%d" % (task, step, index)).replace(b"@T@", b"%d" % task)
            line = line.replace(b"@NNNN@", b"%06d" % number).replace(b"777777", b"%d" % step)
            line = line.replace(b"666666", b"%d" % index)
            yield line.replace(b"I add the", b"zebrafish add the") if number == count * 3 // 4 else line

    raw = 0
    step = 0
    metrics = []
    while written < count:
        step += 1
        made = list(lines(step))
        raw += sum(map(len, made))
        write_members(folder / f"step-{step:06d}.jsonl.zst", made)
        rates = {"reward": step / 1000 - 0.5, "pass_rate": min(1.0, step / 900), "raw_failures": 30 - step / 50}
        metrics.append({"step": step, **rates, "cpu_s": step * 2.5, "wall_s": step * 3.0, "total_tokens": 90_000.0})
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
    about = {"format": 1, "version": "made", "kind": "rl", "recipe": {"rl": {"steps": step}}, "inputs": {}}
    (out / "run.json").write_text(json.dumps(about), encoding="utf-8")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(
        f"{count:,} rollouts, {raw / 1e6:.0f} MB of JSON, {size / 1e6:.0f} MB on disk, {size / count:.0f} B a rollout"
    )


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


QUERIES: tuple[dict[str, Any], ...] = (
    {}, {"text": "zebrafish"}, {"text": "undefined_total"}, {"text": "total", "field": "code"}, {"failed": True},
    {"error": "NameError"}, {"step": (30, 30)}, {"dropped": True}, {"repair": "deep"}, {"verdict": "wrong"},
    {"group": "weighted/36/4"}, {"sort": "-tokens"}, {"failed": True, "sort": "-advantage"},
    {"text": "index out of range", "field": "output", "verdict": "right"}, {"repair": "none", "sort": "-seconds"},
)  # fmt: skip


def build_index(run: Path) -> Index:
    """Build the index anew; print how fast."""
    (run / "index.sqlite").unlink(missing_ok=True)
    files = sorted((run / "trajectories").iterdir())
    cpu = time.process_time()
    index = Index(run)
    began = time.perf_counter()
    count = index.update()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    raw = sum(len(line) for file in files for line in _lines(file))
    print(f"indexed {count:,} rollouts, {raw / 1e6:.0f} MB, in {took:.1f} s ({cpu:.1f} CPU-s): {raw / 1e6 / took:.0f} "
          f"MB/s ({raw / 1e6 / cpu:.0f} a CPU-second); index {index.path.stat().st_size / 1e6:.0f} MB")  # fmt: skip
    return index


def measure_index(run: Path) -> None:
    """Build the index anew; then the CPU time of a page of rows and their counts: median, most, found, query."""
    index = build_index(run)
    times: list[float] = []
    for about in QUERIES:
        query = Query(**about)
        one = [timed(lambda query=query: (index.rows(query), index.counts(query))) for _ in range(14)]  # type: ignore[misc]
        times += one
        figures = f"{statistics.median(one) * 1000:7.1f} ms  {max(one) * 1000:7.1f} ms"
        print(f"{figures}  {index.counts(query).total:8,}  {about}")
    print(f"95th percentile of {len(times)}: {sorted(times)[int(len(times) * 0.95)] * 1000:.0f} ms; "
          f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")  # fmt: skip


def _lines(file: Path) -> Iterator[bytes]:
    from retcon.store.members import lines_at

    return (line for _, _, line in lines_at(file))


def measure_storing(recipe: str, start: str, out: Path, steps: int, pairs: int) -> None:
    """Measure the CPU cost of storing all rollouts, in turns; with its interval."""
    import scipy.stats

    seconds: dict[str, list[float]] = {"10": [], "0": []}
    out.mkdir(parents=True, exist_ok=True)
    for pair in range(pairs):
        for keep in sorted(seconds, reverse=bool(pair % 2)):
            folder = out / f"{pair}-{keep}"
            words = ["train", recipe, f"rl.steps={steps}", f"run.keep_gb={keep}", "--from", start, "--out", str(folder)]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-m", "retcon", *words], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds[keep].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            print(f"pair {pair + 1}, run.keep_gb={keep}: {seconds[keep][-1]:.2f} CPU-s", flush=True)
    ratios = [100 * (all / none - 1) for all, none in zip(seconds["10"], seconds["0"], strict=True)]
    half = scipy.stats.t.ppf(0.95, pairs - 1) * statistics.stdev(ratios) / pairs**0.5
    mean = statistics.fmean(ratios)
    print(f"all stored costs {mean:+.2f} % of CPU time (90 % interval {mean - half:+.2f} to {mean + half:+.2f})")
    from retcon.store.index import make_indexer

    files = sorted((out / "0-10" / "trajectories").iterdir())
    (out / "again" / "trajectories").mkdir(parents=True, exist_ok=True)
    spent = 0.0
    for file in files:
        rollouts = list(jsonl.read(file))
        began = time.process_time()
        write_members(out / "again" / "trajectories" / file.name, map(line_of, rollouts))
        make_indexer(out / "again")(out / "again" / "trajectories" / file.name)
        spent += time.process_time() - began
    whole = statistics.fmean(seconds["0"])
    size = sum(file.stat().st_size for file in files) / sum(1 for file in files for _ in jsonl.read(file))
    share = 100 * spent / whole
    print(f"writing and indexing alone: {spent:.2f} CPU-s, {share:.2f} % of {whole:.1f}; {size:.0f} B a rollout")


def take_pictures(ours: Path, theirs: Path, out: Path) -> None:
    """Take the pictures of docs/view.md. Of two runs, of which `ours` repairs and selects by RoC."""
    from playwright.sync_api import Page, sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "retcon", "view", str(ours), str(theirs), "--port", "0", "--token", "pictures"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            address = (server.stdout or sys.stdin).readline().strip()
            browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])

            def opened(where: str, wait: str, height: int = 620, scheme: str = "light") -> Page:
                size = {"width": 1200, "height": height}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.set_default_timeout(120_000)
                page.goto(address + where)
                page.wait_for_selector(wait)
                page.wait_for_timeout(1500)
                return page

            def keep(page: Page, name: str) -> None:
                page.screenshot(path=out / f"view-{name}.png")
                page.close()

            keep(opened("#/failures?sort=later", ".bars"), "failures")
            step = Index(ours).steps(Query(dropped=True))[-1][0]
            row = Index(ours).rows(Query(selection="penalty", step=(step, step)))[0]
            keep(opened(f"#/group/0/{quote(row['task'], safe='')}/{step}", "tr.dropped", 560), "group")
            spliced = Index(ours).rows(Query(repair="shallow", verdict="right"))[0]
            page = opened(f"#/one/0/{spliced['id']}", ".splice", 760)
            page.evaluate("document.querySelector('.splice').closest('.sides').scrollIntoView()")
            page.wait_for_timeout(300)
            keep(page, "spliced")
            page = opened(f"#/one/0/{spliced['id']}", ".sides", 760, "dark")
            page.keyboard.press("t")
            page.click(".unlikely summary")
            page.click("button:has-text('prefixes')")
            page.evaluate("document.querySelector('.tokens').scrollIntoView()")
            page.wait_for_timeout(300)
            keep(page, "tokens")
            page = opened("#/problems", ".plain td a")
            page.click(".plain td a >> nth=0")
            page.wait_for_selector("tbody input")
            for run in (ours.name, theirs.name):
                page.click(f"tr:has(td:text-is('{run}')) input >> nth=0")
            page.wait_for_selector(".diff")
            page.locator(".diff").scroll_into_view_if_needed()
            keep(page, "arms")
            keep(opened("#/problems?never=1&sort=least", ".plain td a", 420), "problems")
        finally:
            server.terminate()


SEARCHED = "Problem 002750"
"""A text that stands in one rollout of those that `make` writes."""
ROWS = {
    "inspect": "[role=row] [data-col-id=input] p",
    "retcon": "[role=row] [data-column=question]",
}
"""The cell of a row that shows its question, on each page."""


EXPORTED = 10_000
"""Most rollouts that are exported as samples: a log's writer holds all of them, with 100 KB each."""


def repeat_log(path: Path, count: int) -> None:
    """Repeat an Inspect log's samples up to `count`, under new numbers."""
    from zipfile import ZipFile

    from inspect_ai.log._recorders.eval import zipfile_compress_kwargs  # it teaches zipfile zstd, too

    numbers = re.compile(r"(?<=roblem )\d{6}")
    whole = path.with_suffix(".whole")
    with ZipFile(path) as given, ZipFile(whole, "w", **zipfile_compress_kwargs) as out:
        summaries, texts = json.loads(given.read("summaries.json")), {}
        for about in summaries:
            name = f"samples/{about['id']}_epoch_{about['epoch']}.json"
            texts[about["id"], about["epoch"]] = given.read(name).decode()
        epochs, made = max(about["epoch"] for about in summaries), []
        out.writestr("_journal/start.json", given.read("_journal/start.json"))
        for number in range(count):
            copy, at = divmod(number, len(summaries))
            old, problem = summaries[at], f"{number + 1:06d}"
            new = {
                **old,
                "epoch": old["epoch"] + copy * epochs,
                "uuid": f"u{number:021d}",
                "input": numbers.sub(problem, old["input"]),
            }
            text = numbers.sub(problem, texts[old["id"], old["epoch"]]).replace(old["uuid"], new["uuid"])
            text = text.replace(f'"epoch":{old["epoch"]},', f'"epoch":{new["epoch"]},', 1)
            out.writestr(f"samples/{new['id']}_epoch_{new['epoch']}.json", text)
            made.append(new)
        out.writestr("summaries.json", json.dumps(made))
        header = json.loads(given.read("header.json"))
        header["results"] |= {"total_samples": count, "completed_samples": count}
        out.writestr("header.json", json.dumps(header))
    whole.replace(path)


def compare_pages(run: Path, inspect: str, rounds: int) -> None:
    """Time a made run in `inspect view` and `retcon view` alternately. Medians, in one browser."""
    from playwright.sync_api import sync_playwright

    from retcon.report.view.export import write_selection

    logs = run / "inspect"
    if not (logs / "rollouts.eval").exists():
        index = Index(run)
        index.update()
        logs.mkdir(exist_ok=True)
        numbers = index.numbers(Query())
        lines = (index.line(number) for number in numbers[:EXPORTED])
        write_selection("eval", lines, logs / "rollouts.eval", name="made")
        if len(numbers) > EXPORTED:
            repeat_log(logs / "rollouts.eval", len(numbers))
    theirs = [inspect, "view", "--log-dir", str(logs), "--port", "7962"]
    ours = [sys.executable, "-m", "retcon", "view", str(run), "--port", "7963", "--token", "t"]
    addresses = {"inspect": "http://127.0.0.1:7962/#/logs/rollouts.eval/samples", "retcon": "http://127.0.0.1:7963/t/"}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in addresses}
    with subprocess.Popen(theirs) as first, subprocess.Popen(ours) as second, sync_playwright() as playwright:
        try:
            for port in (7962, 7963):
                wait_for(port)
            for _ in range(rounds):
                for name, address in addresses.items():
                    browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
                    page = browser.new_context(bypass_csp=True, viewport={"width": 1400, "height": 900}).new_page()
                    page.set_default_timeout(180_000)
                    found[name].append(visit(page, name, address))
                    print(name, {key: round(value, 2) for key, value in found[name][-1].items()}, flush=True)
                    browser.close()
        finally:
            first.terminate()
            second.terminate()
    for key in found["retcon"][0]:
        medians = {name: statistics.median(one[key] for one in visits) for name, visits in found.items()}
        print(f"{key}: inspect view {medians['inspect']:.2f}, retcon view {medians['retcon']:.2f}, "
              f"{medians['inspect'] / medians['retcon']:.1f} times")  # fmt: skip


def wait_for(port: int) -> None:
    """Wait until a server here takes connections, two minutes at most. Raises TimeoutError."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


def visit(page: Any, name: str, address: str) -> dict[str, float]:
    """Time first row, filter, rollout and second visit of a page. Seconds, the filter's after its last key; and MB of
    the largest renderer, before the page and after the rollout."""
    cell = ROWS[name]

    def since(began: float, until: str) -> float:
        page.wait_for_function(until, polling="raf")
        return time.perf_counter() - began

    shown = (
        f"() => {{ const e = document.querySelector('{cell}'); return !!e && e.getBoundingClientRect().height > 0 }}"
    )
    alone = f"() => document.querySelectorAll('{cell}').length == 1"
    empty = renderer_memory()
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    figures = {"first row": since(began, shown)}
    page.wait_for_timeout(2000)
    if name == "inspect":
        page.click(".cm-content")
        page.keyboard.type(f'input_contains("{SEARCHED}")', delay=30)
    else:
        page.click("#search")
        page.keyboard.type(SEARCHED, delay=30)
    figures["filter"] = since(time.perf_counter(), alone)
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    began = time.perf_counter()
    page.click(cell)
    figures["opened"] = since(began, "() => document.body.innerText.includes('The totals are checked')")
    page.wait_for_timeout(500)
    figures |= {"renderer MB": renderer_memory(), "renderer MB of an empty page": empty}
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    return {**figures, "second visit": since(began, shown)}


def renderer_memory() -> float:
    """Return the MB of the browser's largest renderer."""
    import psutil

    renderers = [p for p in psutil.Process().children(recursive=True) if "--type=renderer" in " ".join(p.cmdline())]
    return max(float(p.memory_info().rss) for p in renderers) / 1e6


TIMED = """async ([where, total, first]) => {
  const began = performance.now(), text = (selector) => document.querySelector(selector)?.innerText.trim();
  location.hash = where;
  while (total ? text(".status b") !== total || text("#row0 [data-column=name]") !== first
               : document.querySelectorAll(".turn").length !== first) {
    if (performance.now() - began > 20000) throw new Error(`${where}: ${text(".status b")} of ${total}, ${first}`);
    await new Promise(requestAnimationFrame);
  }
  document.body.getBoundingClientRect();
  return (performance.now() - began) / 1000;
}"""
"""Seconds from a change of the page's address until its list, or its rollout of so many turns, is laid out."""


def measure_page(run: Path, rounds: int) -> None:
    """Time the page of a made run: its first row, filters and searches, a long rollout; and its memory."""
    from playwright.sync_api import sync_playwright

    index = build_index(run)
    wanted: list[tuple[str, str | None, Any]] = []
    for query in QUERIES:
        step = {"step": str(query["step"][0])} if "step" in query else {}
        where = "#/list?" + urlencode({name: 1 if value is True else value for name, value in query.items()} | step)
        found = Query(**query)
        wanted.append((where, f"{index.counts(found).total:,}", index.rows(found, 1)[0]["name"]))
    long = index.rows(Query(sort="-tokens"), 1)[0]
    index.close()
    shown = f"() => document.querySelector('{ROWS['retcon']}')"
    words = [sys.executable, "-m", "retcon", "view", str(run), "--port", "0", "--token", "t"]
    figures: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    with sync_playwright() as playwright:
        for _ in range(rounds):
            browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
            page = browser.new_context(bypass_csp=True, viewport={"width": 1400, "height": 900}).new_page()
            add("renderer of an empty page, MB", renderer_memory())
            began = time.perf_counter()
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
                try:
                    address = (server.stdout or sys.stdin).readline().strip()
                    for name in ("first row after the command, s", "first row of a second visit, s"):
                        page.goto(address, wait_until="commit")
                        page.wait_for_function(shown, polling="raf")
                        add(name, time.perf_counter() - began)
                        page.goto("about:blank")
                        began = time.perf_counter()
                    page.goto(address)
                    page.wait_for_function(shown, polling="raf")
                    for where in wanted * 14:
                        add("a filter or search, s", page.evaluate(TIMED, where))
                    add("renderer with the list, MB", renderer_memory())
                    for _ in range(3):
                        where = ("#/one/0/" + str(long["id"]), None, long["turns"])
                        add("a rollout of 1 MB, s", page.evaluate(TIMED, where))
                        page.evaluate(TIMED, wanted[0])
                    add("renderer after the rollouts, MB", renderer_memory())
                    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
                    add("server at most, MB", int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1024 / 1e6)
                finally:
                    server.terminate()
            browser.close()
    for name, values in figures.items():
        values.sort()
        print(f"{name}: median {statistics.median(values):.2f}, 95th percentile {values[int(len(values) * 0.95)]:.2f}, "
              f"most {values[-1]:.2f} of {len(values)}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make")
    one.add_argument("count", type=int)
    one.add_argument("out", type=Path)
    commands.add_parser("index").add_argument("run", type=Path)
    one = commands.add_parser("page")
    one.add_argument("run", type=Path)
    one.add_argument("--rounds", type=int, default=3)
    one = commands.add_parser("pictures")
    one.add_argument("ours", type=Path)
    one.add_argument("theirs", type=Path)
    one.add_argument("out", type=Path)
    one = commands.add_parser("against")
    one.add_argument("run", type=Path)
    one.add_argument("inspect", help="the program of inspect-ai")
    one.add_argument("--rounds", type=int, default=3)
    one = commands.add_parser("storing")
    one.add_argument("recipe")
    one.add_argument("start")
    one.add_argument("out", type=Path)
    one.add_argument("--steps", type=int, default=40)
    one.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    if given.command == "make":
        make(given.count, given.out)
    elif given.command == "page":
        measure_page(given.run, given.rounds)
    elif given.command == "pictures":
        take_pictures(given.ours, given.theirs, given.out)
    elif given.command == "against":
        compare_pages(given.run, given.inspect, given.rounds)
    elif given.command == "storing":
        measure_storing(given.recipe, given.start, given.out, given.steps, given.pairs)
    else:
        measure_index(given.run)


if __name__ == "__main__":
    main()
