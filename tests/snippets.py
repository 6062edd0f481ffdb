"""Run every block of README and docs as printed: `make snippets`, or this file with pages as arguments.

What a block is says its tag:

    bash      commands, which bash runs, up to the first that fails
    console   commands after `$ `, each followed by its output, which is compared: numbers and ids may differ, and `…`
              stands for anything
    python    a program; the blocks of a page share their names
    toml      a recipe, or a part of one, which is read
    others    shown, and not run

A page is run from top to bottom in a folder of its own that looks like a clone, by the Python that runs this file. The
first line of a block may be a comment with these parts, between semicolons:

    # NAME.py             the block is a file, and is written under this name (also .toml, .jsonl)
    # a server            stays up until the end of the page; the next block is run once it listens
    # needs TRL           is run where TRL can be imported; NEEDS has all of these
    # takes 3 minutes     is run where `--minutes` allows it; or: takes hours

`--with "the hub"` says that a need is met which cannot be looked up. The last line counts what was run and what not.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^( *)(```+)([^\n`]*)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
RUN = ("bash", "console", "python", "toml")
SHOWN = ("text", "json", "yaml", "nginx")
MINUTES = re.compile(r"takes (?:(\d+) minutes?|hours)")
FILE = re.compile(r"[\w/-]+\.(?:py|toml|jsonl)")
URL = re.compile(r"http://[\w.]+:(\d+)")
OFFLINE = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
NETWORK = ("the hub", "PyPI")


def module(name: str) -> Callable[[], bool]:
    def found() -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # its package
            return False

    return found


def program(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def never() -> bool:
    return False


NEEDS: dict[str, Callable[[], bool]] = {
    "a GPU": program("nvidia-smi"),
    "the hub": never,
    "PyPI": never,
    "an environment of its own": never,  # pip would change the one that this runs in
    "a run": lambda: True,  # MAKE_RUN makes it
    "a judge": never,
    "a server": never,
    "GSM8K": never,
    "the transcripts": never,
    "the benchmarks' files": never,
    "the quickstart's run": never,
    "vLLM": (ROOT / ".venv-vllm/bin/python").exists,
    "TRL": module("trl"),
    "verl": module("verl"),
    "Ray": module("ray"),
    "verifiers 0.4": lambda: module("verifiers.v1")() and not module("verifiers.legacy")(),
    "verifiers below 0.4": module("verifiers.legacy"),
    "OpenEnv": module("openenv"),
    "smolagents": module("smolagents"),
    "OpenAI's agents": module("agents"),
    "LangChain": module("langchain_openai"),
    "OpenHands": module("openhands"),
    "mutmut": module("mutmut"),
    "podman": program("podman"),
    "systemd": never,
}


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line of text, counted from 1. about: the parts of a comment there."""

    page: Path
    line: int
    tag: str
    text: str
    about: tuple[str, ...]

    @property
    def needs(self) -> list[str]:
        return [name for part in self.about if part.startswith("needs ") for name in re.split(r", | and ", part[6:])]

    @property
    def minutes(self) -> float:
        """That it says it takes; 0 where it says nothing."""
        found = next(filter(None, map(MINUTES.fullmatch, self.about)), None)
        return 0 if found is None else float(found[1] or "inf")

    @property
    def file(self) -> str | None:
        return next(filter(FILE.fullmatch, self.about), None)

    @property
    def where(self) -> str:
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCED.finditer(text):
        lines = [line.removeprefix(match[1]) for line in match[4].splitlines(keepends=True)]
        first = lines[0].strip() if lines else ""
        about = tuple(first[2:].split("; ")) if first.startswith("# ") else ()
        found.append(Block(page, text.count("\n", 0, match.start()) + 2, match[3].strip(), "".join(lines), about))
    return found


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Options:
    """minutes: what a block may say at most that it takes. given: needs that are met."""

    minutes: float = 0
    given: tuple[str, ...] = ()

    def lacks(self, block: Block) -> str | None:
        """Why a block is not run; None where it is."""
        for need in block.needs:
            if need not in self.given and not NEEDS[need]():
                return f"needs {need}"
        if "a run" in block.needs and self.minutes < 1:
            return "needs a run"
        return next(part for part in block.about if "takes" in part) if block.minutes > self.minutes else None


class CommandFailed(Exception):
    """Commands of a block end with another exit code than 0; the message has the end of what they print."""


@dataclass
class PageRun:
    """A page being run, in its folder, which is the working directory."""

    options: Options
    module: types.ModuleType = field(default_factory=lambda: types.ModuleType("__main__"))
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, block: Block) -> str | None:
        """Runs a block; returns what went wrong, None where nothing did."""
        if "a run" in block.needs and not Path("runs/mine").exists():
            self.bash(block, MAKE_RUN)
        if block.tag == "python":
            return self.python(block)
        if block.tag == "toml":
            return read_recipe(block.text)
        if block.tag == "console":
            return self.console(block)
        if "a server" in block.about:
            return self.server(block)
        self.bash(block, block.text)
        return None

    def python(self, block: Block) -> str | None:
        """Runs the statements of a program; an expression with a literal as its comment must have this value."""
        lines = block.text.splitlines()
        try:
            for statement in ast.parse(block.text).body:
                shown = literal(lines[statement.end_lineno - 1][statement.end_col_offset :])
                ast.increment_lineno(statement, block.line - 1)
                if isinstance(statement, ast.Expr) and shown is not None:
                    value = eval(compile(ast.Expression(statement.value), str(block.page), "eval"), vars(self.module))
                    if value != shown:
                        return f"line {statement.lineno}: {value!r}, and shown is {shown!r}"
                else:
                    exec(compile(ast.Module([statement], []), str(block.page), "exec"), vars(self.module))
        except (Exception, SystemExit):  # noqa: BLE001  whatever a page's program raises is its failure
            return traceback.format_exc()
        return None

    def environment(self, block: Block) -> dict[str, str]:
        blocked = {} if set(block.needs) & set(NETWORK) else {**OFFLINE, "no_proxy": "127.0.0.1,localhost"}
        return {**os.environ, **blocked}

    def bash(self, block: Block, text: str) -> str:
        """What commands print to standard output. Raises CommandFailed."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                ["bash", "-e", "-o", "pipefail", "-c", text], env=self.environment(block), stdin=subprocess.DEVNULL,
                stdout=output, stderr=errors, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(60 * (10 + 10 * min(block.minutes, 600)))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            for file in (output, errors):
                file.seek(0)
            printed = output.read().decode(errors="replace")
            if code:
                complaint = errors.read().decode(errors="replace")
                raise CommandFailed(f"{printed[-2000:]}{complaint[-2000:]}exit code {code}")
            return printed

    def server(self, block: Block) -> str | None:
        log = Path(f"server-{len(self.servers)}.log")
        with log.open("wb") as output:
            self.servers.append(
                subprocess.Popen(
                    ["bash", "-c", block.text], env=self.environment(block), stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )
            )  # fmt: skip
        until = time.monotonic() + 60 * (5 + 5 * block.minutes)
        while time.monotonic() < until and self.servers[-1].poll() is None:
            if (found := URL.search(log.read_text(errors="replace"))) is not None and listens(int(found[1])):
                return None
            time.sleep(0.1)
        return f"{log.read_text(errors='replace')[-3000:]}\nit does not listen"

    def console(self, block: Block) -> str | None:
        """All commands of a block run in one shell; its output is split by a mark before each."""
        commands, outputs = sessions(block.text)
        mark = "\x1e"
        output = self.bash(block, "".join(f"printf '{mark}'\n{command}\n" for command in commands))
        for command, shown, printed in zip(commands, outputs, output.split(mark)[1:], strict=True):
            if not agrees(shown, printed):
                return f"$ {command}\nshown:\n{shown}printed:\n{printed}"
        return None

    def close(self) -> None:
        for server in self.servers:
            for stop in (signal.SIGTERM, signal.SIGKILL):
                if server.poll() is None:
                    os.killpg(server.pid, stop)
                    with suppress(subprocess.TimeoutExpired):
                        server.wait(60)


def read_recipe(text: str) -> str | None:
    """Reads a block of TOML, as a recipe where it has a recipe's sections."""
    from retcon.config.load import load_recipe
    from retcon.config.schema import SECTIONS
    from retcon.core.errors import RecipeError

    try:
        if set(tomllib.loads(text)) & {*SECTIONS, "stages"}:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "shown.toml"
                file.write_text(text, encoding="utf-8")
                load_recipe(file)
    except (tomllib.TOMLDecodeError, RecipeError) as error:
        return str(error)
    return None


def literal(comment: str) -> object:
    """The value of a comment that is a literal, else None."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(comment.strip().removeprefix("#").strip())
    return None


def sessions(text: str) -> tuple[list[str], list[str]]:
    """Commands after `$ `, with the lines that continue them, and what is shown below each."""
    commands: list[str] = []
    outputs: list[str] = []
    open_quote = False
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
            outputs.append("")
        elif open_quote or (commands and not outputs[-1] and commands[-1].endswith("\\")):
            commands[-1] += "\n" + line
        elif commands:
            outputs[-1] += line + "\n"
        open_quote = bool(commands) and not outputs[-1] and commands[-1].count("'") % 2 == 1
    return commands, outputs


def agrees(shown: str, printed: str) -> bool:
    """Whether an output is the one that is shown, up to numbers, ids and layout; nothing shown agrees with all."""

    def plain(text: str) -> str:
        return re.sub(r"[0-9a-f-]{16,}|[\d.]+(?:e-\d+)?", "0", "".join(text.split()))

    pattern = ".*".join(re.escape(plain(part)) for part in shown.split("…"))
    return not shown.strip() or re.fullmatch(pattern, plain(printed), re.DOTALL) is not None


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_clone(folder: Path) -> None:
    """What a clone holds, by links and, where commands of a page may write, copies; `runs` is the page's own."""
    for path in ROOT.iterdir():
        if path.name in ("benchmarks", "examples", "recipes"):
            shutil.copytree(path, folder / path.name)
        elif path.name not in ("runs", "build", "dist") and (path.name[0] != "." or path.name.startswith(".venv")):
            (folder / path.name).symlink_to(path)


MAKE_RUN = """
retcon sft quickstart/cold_start sft.demonstrations=100 sft.steps=10 --out runs/mine-start
retcon train quickstart/saar rl.steps=1 rl.prompts=2 rl.group=4 --from runs/mine-start --out runs/mine
"""
"""Makes what a block has that needs a run: a short one, as `runs/mine`."""


@dataclass(frozen=True)
class Outcome:
    """why: it was not run. fault: it failed."""

    block: Block
    why: str | None = None
    fault: str | None = None
    seconds: float = 0

    @property
    def state(self) -> str:
        return self.why or ("failed" if self.fault else "ran")

    def __str__(self) -> str:
        took = "" if self.why else f" ({self.block.tag}, {self.seconds:.1f} s)"
        return f"  {self.block.where}: {self.state}{took}"


def run_page(page: Path, options: Options) -> list[Outcome]:
    """Runs a page in this process, whose working directory and `__main__` it changes."""
    own_bin = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    os.environ |= {"PATH": own_bin, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    os.environ |= {"OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1,localhost"}
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="retcon-snippets-") as folder:
        make_clone(Path(folder))
        os.chdir(folder)
        sys.path[:0] = ["", str(ROOT / "src")]
        run = PageRun(options)
        sys.modules["__main__"] = run.module
        try:
            for block in read_blocks(page):
                if block.tag not in RUN and not block.file:
                    continue
                if block.file:
                    Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                    Path(block.file).write_text(block.text, encoding="utf-8")
                outcome = Outcome(block, options.lacks(block))
                if outcome.why is None:
                    since = time.monotonic()
                    faulthandler.dump_traceback_later(60 * (20 + 20 * min(block.minutes, 600)), exit=True)
                    try:
                        fault = run.run(block)
                    except CommandFailed as error:
                        fault = str(error)
                    faulthandler.cancel_dump_traceback_later()
                    outcome = Outcome(block, None, fault, time.monotonic() - since)
                print(outcome, *filter(None, [outcome.fault]), sep="\n", flush=True)
                outcomes.append(outcome)
        finally:
            run.close()
            os.chdir(ROOT)
    return outcomes


def run_pages(chosen: Sequence[Path], options: Options) -> Iterator[Outcome]:
    """Each page in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for page in chosen:
            yield from pool.submit(run_page, page, options).result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="README.md, docs/…; all where none is named")
    parser.add_argument("--minutes", type=float, default=5, help="run blocks that say they take at most this many (5)")
    parser.add_argument("--with", dest="given", action="append", default=[], choices=list(NEEDS), help="a need is met")
    words = parser.parse_args()
    chosen = [page.resolve() for page in words.pages] or pages()
    outcomes = list(run_pages(chosen, Options(words.minutes, tuple(words.given))))
    failed = [outcome for outcome in outcomes if outcome.fault]
    counts = Counter(re.sub(r"\d+ minutes?", "minutes", outcome.state) for outcome in outcomes)
    print(f"{len(outcomes)} blocks: " + ", ".join(f"{why} {times}" for why, times in counts.most_common()))
    print(*(f"failed: {outcome.block.where}" for outcome in failed), sep="\n", end="")
    return 1 if failed else 0


if __name__ == "__main__":
    import snippets  # what pages' processes hand back is of a module that a page's program does not take the place of

    sys.exit(snippets.main())
