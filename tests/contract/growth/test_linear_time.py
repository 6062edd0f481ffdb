"""What reads texts that a model or a caller wrote takes time in proportion to their length, whatever they say.

Eight times the text may take twenty-four times as long, where quadratic time would take sixty-four: that is CPU time of
this thread alone, so that neither load nor a slow machine matters.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from conversing import family_of
from retcon.chat import markdown
from retcon.chat.chat import Chat, JointEncoder
from retcon.chat.families import hermes
from retcon.chat.formats import find_tagged
from retcon.chat.tokenizer import ByteTokenizer
from retcon.chat.types import glue, words
from retcon.config.load import find_line
from retcon.core.errors import nearest
from retcon.core.types import Segment, Trajectory
from retcon.http.endpoints import RequestRefused, parse_body
from retcon.purify import programs as names
from retcon.purify import programs as reads
from retcon.purify import programs as trees
from retcon.purify.failing import does_nothing
from retcon.purify.words import find_comment_references, find_references
from retcon.report.transcript import _aligned, _prompt
from retcon.sandbox.pool.paths import to_write
from retcon.sandbox.pool.profiles import BUILT_IN, Chooser
from retcon.sandbox.types import Result
from retcon.tasks.data.fields import canonicalize
from retcon.tasks.data.load import EvaluationIndex
from retcon.tasks.graders.mathematics import in_words, same_in_base
from retcon.tasks.graders.stated import find_stated
from retcon.tasks.graders.text import find_boxed, same_choice
from retcon.tools.kinds.python import ObservationFormatter
from retcon.transcripts.formats.notations import EXECUTE, NOTATIONS, HermesInText, Markdown
from retcon.transcripts.verdicts import judge

RETOOL, VERL = NOTATIONS[0], HermesInText()
ENCODER = JointEncoder(ByteTokenizer())
MEASURABLE, LONGEST, FACTOR, BOUND = 0.0004, 1 << 16, 8, 24


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    kind: str = ""


class Body(msgspec.Struct, forbid_unknown_fields=True):
    code: str = ""
    inner: Inner | None = None


def refused(body: Any) -> None:
    with suppress(RequestRefused):
        parse_body(msgspec.json.encode(body), Body)


def paths(text: str) -> None:
    with suppress(ValueError):
        to_write([text, text + "b"])


def prompt(text: str) -> None:
    list(_prompt(Trajectory("t", "t", (Segment("prompt", text),), (), stop="answer")))


def overlap(text: str) -> None:
    EvaluationIndex([("a", text), ("b", f"{text} b")]).match(f"c {text}")


def program(text: str) -> None:
    trees.parse.cache_clear()
    names.effects(text), reads.reads(text), names.goals(text, 1), names.works_out(text), names.assertions(text)


CALLS = {
    "qwen": ('<tool_call>"\\\\u', '<tool_call>"\\\\', "</think>", "<tool_call>", '<tool_call>{"', "<think>"),
    "bare": ('{"name": ', '\n{"name": "s", "parameters": {}};', '{"name": "s", "parameters": {}}; ', "<|python_tag|>",
             "\n{", "\n ", '\n{"name": "', "{\n", ";", "["),
    "listed": ("[TOOL_CALLS]", '[TOOL_CALLS][{"', "[TOOL_CALLS][", '{"name": "s", "arguments": {}}, ',
               '[TOOL_CALLS][{"name": "s", "arguments": {}},', "[TOOL_CALLS][{}]", "a", " ", "["),
    "objects": ('<tool_call>"\\u', "</think>", "<tool_call>", '<tool_call>{"', "<think>", "</tool_call>"),
    "named": ("[TOOL_CALLS]s[ARGS]{", "[TOOL_CALLS]s", '[TOOL_CALLS]s[ARGS]{"', "[TOOL_CALLS]s[ARGS]{}", "[ARGS]"),
    "fenced": ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>s", "a",
               '<｜tool▁call▁begin｜>function<｜tool▁sep｜>s\n```json\n{"', " ", "\n"),
    "quoted": ("<|tool_call>call:s{", '<|tool_call>call:s{q:<|"|>', "<|tool_call>call:s{q:[", "}<tool_call|>", '<|"|>'),
    "pythonic": ("<|tool_call_start|>[", "<|tool_call_start|>[s(q='", "<|tool_call_start|>[s()]<|tool_call_end|>", "("),
    "harmony": ("<|message|>", "to=functions.s<|message|>", 'to=functions.s<|message|>{"', "<|start|>", "to=",
                "to=python<|message|>", "to=functions.s<|message|>{}", "<|end|>", "<|message|><|end|>", " "),
    "tags": ("<tool_call>", "<function=s>", "<tool_call><function=s><parameter=q>", "<function=s><parameter=q>1",
                    "<parameter=q>1</parameter>", "</parameter>", "</parameter> ", "<tool_call> ", "</tool_call>",
                    "<tool_call><function=s></function></tool_call>", "<function=", "</function> "),
}  # fmt: skip
READERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "profiles": (
        Chooser(BUILT_IN),
        (" ", "\t", "\r", "\x85", "\\\n", ";", "; ", ": ", "import ", "import a,", "import a as b,", "from a ", "a\n",
         "from a\n", "b64decode('A", "b64decode('AAAA')", "\n", ", ", "as "),
    ),
    "chat.hermes": (
        lambda text: list(hermes.find_calls(text)),
        ("<tool_call>", '<tool_call>{"', "<tool_call>{", "<tool_call>[1", '<tool_call>"a" ', "<tool_call>1 ",
         "<tool_call>{}</tool_call>", "</tool_call>", '<tool_call>"\\"', " ", "["),
    ),
    "chat.formats": (lambda text: list(find_tagged(text)), CALLS["tags"]),
    "chat.markdown": (
        lambda text: [list(markdown.find_calls(text, indented=indented)) for indented in (False, True)],
        ("```python\n", "````python\n", "```python\nx\n```\n", "`", "\n```", "\n``` x", "```py ", "\n", " ", "- ",
         "  ```py\n  x\n  ```\n"),
    ),
    "chat.parse": (
        lambda text: Chat(ByteTokenizer()).parse(ByteTokenizer().encode(text), prefix="0"),
        ("```python\nx\n```\n", "```python\n", "é```python\nx\n```\n"),
    ),
    "tasks.canonical": (canonicalize, (" ", "a ", " .", "$", "\\\\", r"\left", r"\dfrac", "Aaa", r"\[", "é", ".")),
    "tasks.overlap": (overlap, ("a ", "a b c d e f g h i j k l m ", "x1 ", "-", "é ", "[asy]", "[asy] a [/asy]")),
    "tasks.words": (
        in_words,
        (r"\text{", r"\text{a}", r"\text", "sin", "ab ", "{", "\\\\"),
    ),
    **{f"chat.{name}": (lambda text, name=name: list(family_of(name).find_calls(text)), units)
       for name, units in CALLS.items()},
    "chat.encoding": (
        lambda text: ENCODER([glue("<|im_start|>"), words(text), *[words("é"), glue("x")] * (len(text) // 9)]),
        ("a", "é", "<|im_end|>", "\n"),
    ),
    "tasks.choice": (
        lambda text: [same_choice("B", begin + text) for begin in ("", "B. ", "#### ")],
        ("B ", "B. ", "(B) ", "B is ", "B is the best ", "and B", "answer ", "B.\n", "* ", "answer is ", "the\n",
         "it is ", "so (", "I go with B, ", "answer is 1 (option ", "answer to "),
    ),
    "tasks.stated": (
        lambda text: [find_stated(text + end) for end in ("", ".", " 5", "$", "\\]")],
        ("7 ", "1,111", "answer ", "answer is ", "$", "\\[", "$$", "(", "= ", "a.", "\\("),
    ),
    "tasks.base": (
        lambda text: (same_in_base("52_8", f"5 {text}"), same_in_base("52_8", rf"\boxed{{{text}}}")),
        ("7", "1,111", " ", "5 ", "- ", "5 in ", "5_", "=5_8", "}_{", "{,}", "₈"),
    ),
    "tasks.boxed": (find_boxed, (r"\boxed{", r"\boxed{1}", "{", "}", "{}", r"\boxed")),
    "errors.nearest": (lambda text: nearest(text, ["code", "stdin", "timeout"]), ("code", "x", " ")),
    "paths": (paths, ("a/", "./", "../", "a", "é/")),
    "service.field": (lambda text: refused({text: 1}), (" - at `$", " - at `$.inner", "[", "`", ".", "code", "é\n")),
    "service.inner": (lambda text: refused({"inner": {text: 1}}), (" - at `$", " - at `$.inner", "[", "`", ".")),
    "tools.wording": (
        lambda text: ObservationFormatter("python", 100)._text(Result("error", "ValueError", stderr=text), ""),
        ("\n", "ValueError\n", "a.b:", " ", "x\n"),
    ),
    "config.find_line": (lambda text: find_line(text, "rl", "steps"), (" ", "a", "[", "a.", 'a = "', "\n", '"')),
    "purify.noop": (does_nothing, ("pass\n", "# x\n", "\n", " ", "(", "-", "'''", "x=")),
    "purify.names": (
        program,
        ("x=1\n", "x\n", "\n", "def f():\n", "(", "[", "import a\n", "import a, b\n", "from a import b\n", "x = (\n",
         "'", "#x\n", " ", "  x\n", "assert x\n", "x+", "for x in y: ", "!ls\n", "%m\n",
         "if x: y = 1\n", "if x: y = 1\nelse: z = y\n", "try: y = x\nexcept E as e: pass\n", "f(lambda x: x, y)\n",
         "def f(x): return [y for y in x]\n", "class A: x = y\n"),
    ),
    "purify.words": (
        lambda t: (find_references(t, "fix"), find_references(t, "later"), find_comment_references("x\n" + t, "fix")),
        ("Sorry. ", "sorry ", "a. ", "1. ", "# fix\n", "#", "\n", " ", "e.g. ", "`", "It ", "This is. ", "\n- ", "("),
    ),
    "transcripts.failures": (
        judge,
        ("\n", "-", "Traceback (most recent call last)", "Traceback (most recent call last):\n  File",
         "File a, line 1\n", 'File "a", line 1, in x\n', " ", "x\n", "exit code 1\n", "exit code 1 ", "{",
         '{"a":', "[", "<", "Error: ", "a.b:", "\x1b[", "\x1b[0m", "NameError(", "NameError    ",
         "Cell In[1], line 1\n", "Cell In[1], line 1, in f()\n", "<ipython-input-1> in <module>\n", "----> 1 x\n",
         "E    Traceback (most recent call last)\nCell In[1], line 1\n", "SyntaxError: ", "timed out ", "Killed\n",
         "bash: line 1: ", "Code execution failed at line ", "python", "'"),
    ),
    "transcripts.markdown": (
        lambda text: (Markdown().cut(text, answered=True), Markdown().outputs(text), Markdown().clean_inside(text)),
        ("```python\n", "````python\n", "```python\nx\n```\n", "```python\nx\n```\n```output\n", "```output\n", "`",
         "\n```", "\n``` x", "```py ", "\n", " ", "Output: ", "<output>"),
    ),
    "transcripts.tags": (
        lambda text: (RETOOL.cut(text, answered=True), RETOOL.clean_calls(text), RETOOL.clean_inside(text)),
        ("<code>", "</code>", "<code></code>", "<code>x</code><interpreter>", "<interpreter>", "<code>x</code> "),
    ),
    "transcripts.verl": (
        lambda text: (VERL.cut(text, answered=False), VERL.clean_inside(text)),
        ("<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<tool_call></tool_call><tool_response>",
         "<tool_call>{}</tool_call>\n<tool_response>x", "<tool_call></tool_call><tool_response></tool_response>", " ",
         "<tool_call></tool_call>\n<|im_start|>user\n<tool_response></tool_response>a",
         "<tool_call></tool_call>\nuser\n<tool_response></tool_response>a\nassistant\n"),
    ),
    "transcripts.told": (
        lambda text: (VERL.cut_user_message(f"<tool_response>{text}"), Markdown().cut_user_message(f"<output>{text}"),
                      RETOOL.cut_user_message(f"<interpreter>{text}"), EXECUTE.cut_user_message(f"Observation:{text}")),
        ("<tool_response>", "</tool_response>", "<tool_response></tool_response>a", "\n```", "</output>", "\nExpert",
         "\nYou have 3 steps left", "\nYou should take the last step", "</interpreter>", " ", "\n"),
    ),
    "report.diff": (lambda text: list(_aligned(text, text[::-1])), ("\n", "a\nb\n", "x")),
    "report.prompt": (prompt, ("<|im_start|>", "<|im_start|>user\n", "<|im_end|>", "<|im_start|>a")),
}  # fmt: skip
WRAPPED = (("", ""), ("import numpy", "\nprint(1)"), ("```python\n", "\n```x"))


def seconds(read: Callable[[str], object], text: str) -> float:
    """CPU seconds of this thread, without those of the garbage collector, which walks whatever other tests left."""
    gc.disable()
    started = time.thread_time()
    try:
        read(text)
        return time.thread_time() - started
    finally:
        gc.enable()


def in_proportion(read: Callable[[str], object], text: str, longer: str) -> bool:
    once = min(seconds(read, text) for _ in range(2))
    return any(seconds(read, longer) < BOUND * once for _ in range(3))


@pytest.mark.parametrize("reader", READERS)
def test_eight_times_the_text_takes_no_more_than_eight_times_as_long_or_so(reader: str) -> None:
    read, units = READERS[reader]
    for unit in units:
        for before, after in WRAPPED:
            length, text = 1000, ""
            while length <= LONGEST:
                text = before + unit * (length // len(unit)) + after
                if min(seconds(read, text) for _ in range(2)) > MEASURABLE:
                    longer = before + unit * (FACTOR * length // len(unit)) + after
                    # measured again where a busy machine gave the longer text the worse of it
                    assert any(in_proportion(read, text, longer) for _ in range(3)), f"{unit!r} × {length // len(unit)}"
                    break
                length *= 4
