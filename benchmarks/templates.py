#!/usr/bin/env python
"""Published chat templates: how many are followed, and whether conversations are what the template renders.

    python benchmarks/templates.py [FOLDER] [--show] [--archives FOLDER]
    python benchmarks/templates.py --models FOLDER …

The templates are those of pinned source distributions (llama-cpp-python, vLLM, TRL), fetched from the package index and
unpacked, not built; or the `.jinja` files of FOLDER. Each gets a byte-level tokenizer with the control tokens that it
writes. --show: the table with a row for each template. Ends with 1 where one was taken and its check is not right.
--models: folders with a tokenizer and a template; 26 observations each, in ids, against the template's own rendering,
and eight with markup, which must stay text.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import json
import re
import sys
import tarfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from retcon.chat.checks import TOOL, Comparison
from retcon.chat.learning import LearnedChat
from retcon.chat.opening import chat_by_template, check_folder
from retcon.chat.template import Template, read_template
from retcon.chat.tokenizer import ByteTokenizer, load_tokenizer
from retcon.core.errors import RetconError
from retcon.core.types import Segment

SOURCES = ("llama-cpp-python==0.3.36", "vllm==0.33.0", "trl==1.16.0")
INDEX = "https://pypi.org/simple"
CONTROL = re.compile(
    r"<\|[^|<>\s'\"{}]+\|>|<｜[^｜<>\s]+｜>|<(?:start|end)_of_turn>|</?s>|<[be]os>|\[e~\[|\]~b\]|\]~!b\[|</(?:assistant|user)>"
    r"|<(?:end|beginning)_of_sentence>|<seed:\w+>|<SPECIAL_\d+>|<turn\|>|<\|turn>|<tool_call\|>|<\|tool_call>|<sep>"
    r"|<\|tool_response>|<tool_response\|>|<\|channel>|<channel\|>|<end_of_utterance>|<(?:start|end)_function_\w+>"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|SYSTEM_PROMPT|TOOL_CONTENT|ARGS|CALL_ID|THINK|MODEL_SETTINGS)\]"
)
"""What published models have as control tokens, by the look of it."""
TOKENS = (
    ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"), ("<|begin_of_text|>", "<|eot|>", "<|header_start|>"),
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"), ("<bos>", "<end_of_turn>", "<start_of_turn>"),
    ("<bos>", "<turn|>", "<|turn>"), ("<s>", "</s>", "[INST]"),
    ("<|startoftext|>", "<|im_end|>", "<|tool_list_start|>"),
    ("", "<|im_end|>", "<|im_start|>"), ("<|startoftext|>", "<|return|>", "<|channel|>"),
    ("", "<|end_of_text|>", "<|start_of_role|>"), ("<|endoftext|>", "<|end|>", "<|assistant|>"),
    ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
)  # fmt: skip
"""First and last token of a text, by a token that a template holds."""


def members(source: str, ending: str, archives: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield path and text of a source distribution's files. ending: a regex.

    archives: a folder with source distributions, which are not fetched.
    """
    name, version = source.split("==")
    found = [f for f in archives.iterdir() if f.name.endswith(f"{version}.tar.gz")] if archives else []
    if found:
        packed = io.BytesIO(found[0].read_bytes())
    else:
        asked = urllib.request.Request(f"{INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
        with urllib.request.urlopen(asked, timeout=60) as page:
            files = json.load(page)["files"]
        url = next(f["url"] for f in files if f["filename"].endswith(f"{version}.tar.gz"))
        with urllib.request.urlopen(urllib.parse.urljoin(f"{INDEX}/{name}/", url), timeout=600) as body:
            packed = io.BytesIO(body.read())
    wanted = re.compile(ending)
    with tarfile.open(fileobj=packed) as archive:
        for member in archive:
            if wanted.search(member.name) and (file := archive.extractfile(member)) is not None:
                yield member.name, file.read().decode()


def fetched(source: str, archives: Path | None = None) -> Iterator[tuple[str, str]]:
    """The templates in a source distribution: name and text."""
    for path, text in members(source, r"\.jinja$", archives):
        yield f"{source.split('==', maxsplit=1)[0]}: {Path(path).stem}", text


def opened(text: str, where: str, **variables: object) -> LearnedChat:
    """A template's chat over bytes. Raises RetconError where it is refused."""
    first, last = next(((first, last) for first, last, mark in TOKENS if mark in text), ("<s>", "</s>"))
    named = {"bos_token": first, "eos_token": last, "pad_token": last, "unk_token": ""}
    template = Template(text, {**named, **variables}, where=where)
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "x"}]
    shown = text + (template.render(talk) if template.renders(talk) else "")
    tokenizer = ByteTokenizer(sorted({*CONTROL.findall(shown), first, last} - {""}))
    return chat_by_template(template, tokenizer, [last])


OBSERVATIONS = (
    "", "1", "42\n", "a\nb\nc", "\n\nx\n\n", "  indented\n\ttab", "é à ü ß", "東京 大阪", "Привет мир", "שלום עולם",
    "مرحبا", "😀 👩‍💻", "naïve — “quoted”", '{"a": [1, 2, {"b": null}]}', "<b>bold</b> & more", "[1, 2, 3]",
    "\\n literal \\t", 'Traceback (most recent call last):\n  File "x", line 1\nNameError: name "a" is not defined',
    "0.30000000000000004", "```python\nprint(1)\n```", "a" * 10_000, "line\n" * 2_000, "words and more words. " * 450,
    "\u200bzero\u200bwidth", "x = 1;\r\ny = 2", "it.\n",
)  # fmt: skip
MARKUP = (
    "<|im_end|><|im_start|>user", "<|eot_id|>", "<end_of_turn>", "</tool_response>", "<tool_call>{}</tool_call>",
    "<|end|><|call|>", "[/TOOL_RESULTS]", "<｜end▁of▁sentence｜>",
)  # fmt: skip


class Observed(Comparison):
    """Compares conversations with one observation."""

    def after(self, result: str) -> tuple[Segment, ...]:
        """A prompt, a call, and what follows it with this observation."""
        calls = [(TOOL.name, {"code": "print(1)"})]
        written = self._wrote(calls)
        return (*self._chat.prompt("x"), written, *self._after(calls, result, written.text))

    def continues(self, result: str) -> bool:
        """Whether the conversation equals the template's in text and ids."""
        segments = self.after(result)
        text = "".join(one.text for one in segments)
        ids = [i for one in segments for i in one.ids or ()]
        return self._observes(result) and ids == self._chat.tokenizer.encode(text, special=True)


def timed(work: Callable[[], object]) -> float:
    """CPU-seconds of a piece of work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def observe(folder: Path) -> str:
    """Compare conversations with a template's rendering, in ids, for each observation. folder: of the model."""
    loading = min(timed(lambda: load_tokenizer(folder)) for _ in range(3))
    checking = min(timed(lambda: check_folder(folder)) for _ in range(3)) - loading
    learned = check_folder(folder)
    source = read_template(folder)
    assert source is not None
    compared = Observed(learned.chat, source.compiled())
    controls = {learned.chat.tokenizer.special_id(control) for control in learned.chat.tokenizer.controls}
    counts = {t: sum(i in controls for one in compared.after(t) for i in one.ids or ()) for t in ("x", *MARKUP)}
    equal = sum(compared.continues(text) for text in OBSERVATIONS)
    kept = sum(counts[text] == counts["x"] for text in MARKUP)
    kind = "code blocks" if learned.why_blocks else learned.chat.style
    shares = f"{equal} of {len(OBSERVATIONS)} | {kept} of {len(MARKUP)}"
    return f"| {folder.name} | {kind} | {shares} | {max(0.0, checking):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--archives", type=Path, help="a folder with the source distributions")
    parser.add_argument("--models", nargs="+", type=Path)
    asked = parser.parse_args()
    if asked.models:
        print("| model | calls | ids equal | markup stays text | check, CPU-s |\n|---|---|---|---|---|")
        print("\n".join(map(observe, asked.models)))
        return
    if asked.folder:
        found = [(file.stem, file.read_text(encoding="utf-8")) for file in sorted(asked.folder.rglob("*.jinja"))]
    else:
        found = [one for source in SOURCES for one in fetched(source, asked.archives)]
    texts = {hashlib.sha256(text.encode()).hexdigest(): (name, text) for name, text in reversed(found)}
    counts: collections.Counter[str] = collections.Counter()
    seconds = 0.0
    print("| template | calls | check | append-only |\n|---|---|---|---|" if asked.show else "", end="\n")
    for name, text in sorted(texts.values()):
        started = time.process_time()
        try:
            learned = opened(text, name)
        except RetconError as error:
            counts["refused"] += 1
            if asked.show:
                print(f"| {name} | refused | {str(error).removeprefix(f'{name}: ')[:100]} | |")
            continue
        seconds += time.process_time() - started
        check = learned.check
        family = learned.chat.family
        form = getattr(family, "format", None)
        kind = "code blocks" if learned.why_blocks else form.syntax if form else family.name
        counts["code blocks" if learned.why_blocks else "its own calls"] += 1
        counts["wrong"] += not check.trains
        counts["append-only"] += check.append_only
        if asked.show:
            why = f" ({learned.why_blocks[:60]})" if learned.why_blocks else ""
            marks = ("right" if check.trains else "WRONG", "yes" if check.append_only else "no")
            print(f"| {name} | {kind}{why} | {' | '.join(marks)} |")
    each = seconds / (len(texts) - counts["refused"])
    print(f"{len(texts)} templates: {dict(counts)}; opening one takes {each:.3f} CPU-s")
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
