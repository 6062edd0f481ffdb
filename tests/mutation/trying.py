"""A pytest plugin: instead of one run of all tests, many forked children that run a few of them each.

First it learns, file by file, which tests pass, how long each takes and which functions it reaches; then it
tries faults, one a child, with tests that reach the fault's function (`Noticing.chosen_of`). A child need not import or
collect anything again. What to try stands in plan.json, what was found in reached.json and ends.json (see mutants.py).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from hypothesis import Phase, settings
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

PLAN, REACHED, ENDS = Path("plan.json"), Path("reached.json"), Path("ends.json")
NOTICING = Path("noticing.txt").absolute()
"""A line for each fault that was noticed in this run, and the test that did."""
NOTICED, SURVIVED, OUT_OF_TIME, UNREACHED = "noticed", "survived", "out of time", "reached by no test"
SLOW_TO_IMPORT = ("retcon", "torch", "transformers")


class Job(NamedTuple):
    name: str
    work: Callable[[], int]
    seconds: float
    """As long as it may take."""


def in_children(jobs: Iterable[Job], children: int) -> Iterator[tuple[str, int | None]]:
    """Does each job in a process of its own, so many at a time: its name and exit code, None if it took too long."""
    waiting = iter(jobs)
    running: dict[int, tuple[str, float, tempfile.TemporaryDirectory[str]]] = {}

    def end(pid: int, *, over: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and what its tests have started
        if not over:
            os.waitpid(pid, 0)
        running.pop(pid)[2].cleanup()

    try:
        while True:
            while len(running) < children and (job := next(waiting, None)):
                folder = tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True)
                if (pid := os.fork()) == 0:
                    _child(job, folder.name)
                running[pid] = job.name, time.monotonic() + job.seconds, folder
            if not running:
                return
            time.sleep(0.005)
            for pid, (name, deadline, _) in list(running.items()):
                over, status = os.waitpid(pid, os.WNOHANG)
                if over or time.monotonic() > deadline:
                    end(pid, over=bool(over))
                    yield name, os.waitstatus_to_exitcode(status) if over else None
    finally:
        for pid in list(running):
            end(pid, over=False)


def _child(job: Job, folder: str) -> NoReturn:
    code = 3
    try:
        os.setsid()
        os.dup2(1, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        code = job.work()
    finally:
        os._exit(code)


def run(session: pytest.Session, items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, bool, float]]:
    """Runs the tests: each, whether it passed, and its seconds, with those of its fixtures."""
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            failed, began = session.testsfailed, time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item, session.testsfailed == failed, time.monotonic() - began
    finally:
        session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)  # takes its fixtures down


def learn(session: pytest.Session, items: Sequence[pytest.Item], answer: Path) -> int:
    known = set(sys.modules)
    set_mutant_under_test("stats")
    del os.environ["MUTANT_UNDER_TEST"]  # programs that a test starts cannot tell us
    tests = {}
    for item, passed, seconds in run(session, items):
        tests[item.nodeid] = {"passed": passed, "seconds": round(seconds, 4), "reaches": sorted(state()._stats)}
        state()._stats.clear()
    new = [name for name in set(sys.modules) - known if name.partition(".")[0] in SLOW_TO_IMPORT]
    write(answer, {"tests": tests, "imports": sorted(new)})
    return 0


def learn_all(session: pytest.Session, children: int) -> dict[str, dict[str, Any]]:
    """What is known of the tests of each file; anew where the file has changed, or where a test of it failed."""
    config()  # which mutmut reads from the folder where it is asked first
    files = defaultdict(list)
    for item in session.items:
        files[str(item.path.relative_to(Path.cwd()))].append(item)
    digests = {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}
    before = read(REACHED)
    reached = {
        file: found
        for file, found in before.items()
        if digests.get(file) == found["digest"] and all(test["passed"] for test in found["tests"].values())
    }
    for found in reached.values():
        warm(found["imports"])
    with tempfile.TemporaryDirectory() as folder:
        answers = {file: Path(folder, str(n)) for n, file in enumerate(files) if file not in reached}
        jobs = (Job(file, partial(learn, session, files[file], answer), 600) for file, answer in answers.items())
        for n, (file, code) in enumerate(in_children(jobs, children), 1):
            if code != 0:
                say(f"{file}: not used, as its tests ended with {code} without a fault")
                continue
            reached[file] = {**read(answers[file]), "digest": digests[file]}
            for test, found in reached[file]["tests"].items():
                if not found["passed"]:
                    say(f"{test}: not used, as it fails without a fault")
            warm(reached[file]["imports"])
            write(REACHED, reached)
            if n % 20 == 0:
                say(f"{n} of {len(answers)} files of tests")
    return reached


def warm(modules: Iterable[str]) -> None:
    """Imports, for all children, what one of them had to import."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def suffer(session: pytest.Session, items: Sequence[pytest.Item], fault: str) -> int:
    set_mutant_under_test(fault)
    for item, passed, _ in run(session, items):
        if not passed:
            with NOTICING.open("a", encoding="utf-8") as file:
                file.write(f"{fault}\t{item.nodeid}\n")
            return 1
    return 0


class Reaching(NamedTuple):
    """A test that reaches a function, and how many others of those that are mutated. digest: of its file."""

    name: str
    seconds: float
    functions: int
    digest: str


class Noticing:
    """How many faults each test has noticed, by function and by module."""

    def __init__(self, ends: dict[str, dict[str, Any]]) -> None:
        self._of: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for fault, end in ends.items():
            if by := end.get("by"):
                self.add(fault, by)

    def add(self, fault: str, test: str) -> None:
        function = function_of(fault)
        self._of[function][test] += 1
        self._of[function.rpartition(".")[0]][test] += 1

    def chosen_of(self, function: str, tests: Sequence[Reaching], seconds: float) -> list[Reaching]:
        """So many seconds of the tests, the quickest at least. Of the first half of them those that noticed most faults
        of the function in the time that they take, then of its module; then those that are quick and reach few
        functions, which are likely to look at what this one gives, where a whole run only passes through."""
        own, near = self._of[function], self._of[function.rpartition(".")[0]]

        def noticed(test: Reaching) -> tuple[float, float, float, str]:
            took = max(test.seconds, 0.001)
            return -own[test.name] / took, -near[test.name] / took, *narrow(test)

        def narrow(test: Reaching) -> tuple[float, str]:
            return max(test.seconds, 0.001) * test.functions, test.name

        chosen: dict[Reaching, None] = {}
        taken = 0.0
        for rank, most in ((noticed, seconds / 2), (narrow, seconds)):
            for test in sorted(tests, key=rank):
                if test not in chosen and taken + test.seconds <= most:
                    chosen[test] = None
                    taken += test.seconds
        return list(chosen) or sorted(tests, key=lambda test: (test.seconds, test.name))[:1]


def function_of(fault: str) -> str:
    return fault.partition("__mutmut_")[0]


def try_all(session: pytest.Session, plan: dict[str, Any], reached: dict[str, dict[str, Any]]) -> None:
    """Tries each of the plan's faults of which it is not known how these tests end with it."""
    items = {item.nodeid: item for item in session.items}
    tests = defaultdict(list)
    for found in reached.values():
        for name, test in found["tests"].items():
            for function in test["reaches"] if test["passed"] else ():
                reaching = Reaching(name, test["seconds"], len(test["reaches"]), found["digest"])
                tests[function].append(reaching)
    ends = read(ENDS)
    noticing = Noticing(ends)
    NOTICING.write_text("", encoding="utf-8")

    def chosen_for(fault: str, digest: str) -> tuple[list[Reaching], dict[str, str]]:
        function = function_of(fault)
        chosen = noticing.chosen_of(function, tests[function], plan["seconds"])
        against = hashlib.sha256(repr(sorted((test.name, test.digest) for test in chosen)).encode()).hexdigest()
        return chosen, {"function": digest, "against": against, "end": UNREACHED}

    left = []
    for fault, digest in plan["faults"].items():
        chosen, ending = chosen_for(fault, digest)
        known = ends.get(fault)
        if known and known["function"] == digest and (known["end"] == NOTICED or known["against"] == ending["against"]):
            continue
        if chosen:
            left.append(fault)
        else:
            ends[fault] = ending
    left.sort(key=lambda fault: ends.get(fault, {}).get("function") == plan["faults"][fault])  # the untried first
    ending_of: dict[str, dict[str, str]] = {}

    def jobs() -> Iterator[Job]:
        for fault in left:
            chosen, ending_of[fault] = chosen_for(fault, plan["faults"][fault])  # by what was noticed until now
            work = partial(suffer, session, [items[test.name] for test in chosen], fault)
            yield Job(fault, work, 20 + 5 * sum(test.seconds for test in chosen))

    with NOTICING.open(encoding="utf-8") as noticed:
        try:
            for n, (fault, code) in enumerate(in_children(jobs(), plan["children"]), 1):
                for line in noticed.readlines():  # also of others, whose process is not over yet
                    other, _, test = line.rstrip("\n").partition("\t")
                    ending_of[other]["by"] = test
                    noticing.add(other, test)
                ends[fault] = ending_of[fault] | {"end": OUT_OF_TIME if code is None else NOTICED if code else SURVIVED}
                if n % 20 == 0:
                    write(ENDS, ends)
                    say(f"{n} of {len(left)} faults")
        finally:
            write(ENDS, ends)


def pytest_configure() -> None:
    phases = [Phase.explicit, Phase.reuse, Phase.generate]  # no smallest example: that a fault is noticed is enough
    settings.register_profile("mutants", settings.get_profile("retcon"), phases=phases)
    settings.load_profile("mutants")


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def write(file: Path, known: dict[str, Any]) -> None:
    file.write_text(json.dumps(known), encoding="utf-8")


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if session.testsfailed:
        return None  # a file could not be imported, as pytest will say
    plan = read(PLAN)
    reached = learn_all(session, plan["children"])
    gc.collect()
    gc.freeze()  # what the children share stays shared
    try_all(session, plan, reached)
    return True
