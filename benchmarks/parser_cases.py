#!/usr/bin/env python
"""Replies of models that vLLM's and llama.cpp's own tests parse: which calls Retcon reads in them.

    python benchmarks/parser_cases.py [--show] [--archives FOLDER]

Inputs and expectations come from the tests in two pinned source distributions, read when this is run: llama.cpp's
`tests/test-chat.cpp`, whose statements are evaluated, and vLLM's `tests/tool_parsers` and `tests/parser`, which pytest
runs with `vllm` replaced: its parsers are Retcon's chats of the templates named below. Cases of streaming, grammars and
content are left out. same: the calls that they expect, no other. refuses: a call that they expect is malformed, or not
read. other: a call is read that they do not expect, or with other arguments. drops: they show as text, or leave out,
what Retcon reads as a malformed call. --show: each case that is not the same. --archives: a folder with the source
distributions, which are not fetched.
"""

from __future__ import annotations

import argparse
import ast
import collections
import importlib.abc
import importlib.machinery
import io
import json
import re
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock
from uuid import uuid4

import pytest
from templates import SOURCES, fetched, members, opened

from retcon.chat.chat import Chat
from retcon.core.errors import RetconError
from retcon.core.types import ToolSpec

LLAMA_CPP, VLLM = SOURCES[:2]
CALLS = Sequence[tuple[str, object]]
PARSERS = {
    "apertus": "vllm: tool_chat_template_apertus", "deepseekv31": "vllm: tool_chat_template_deepseekv31",
    "deepseekv32": "llama-cpp-python: deepseek-ai-DeepSeek-V3.2",
    "deepseek_v32": "llama-cpp-python: deepseek-ai-DeepSeek-V3.2",
    "deepseekv3": "vllm: tool_chat_template_deepseekr1", "deepseekv4": "llama-cpp-python: deepseek-ai-DeepSeek-V4",
    "deepseek_v4": "llama-cpp-python: deepseek-ai-DeepSeek-V4", "qwen3": "llama-cpp-python: Qwen3-Coder",
    "functiongemma": "vllm: tool_chat_template_functiongemma", "gemma4": "vllm: tool_chat_template_gemma4",
    "gigachat3": "llama-cpp-python: GigaChat3-10B-A1.8B", "glm47_moe": "llama-cpp-python: GLM-4.7-Flash",
    "glm4_moe": "llama-cpp-python: GLM-4.6", "granite4": "llama-cpp-python: ibm-granite-granite-4.0",
    "granite": "vllm: tool_chat_template_granite", "hermes": "vllm: tool_chat_template_hermes",
    "hunyuan_a13b": "vllm: tool_chat_template_hunyuan_a13b",
    "internlm2": "vllm: tool_chat_template_internlm2_tool",
    "kimi_k2": "llama-cpp-python: Kimi-K2-Instruct", "kimi_k3": "llama-cpp-python: Kimi-K3",
    "lfm2": "trl: lfm2_v2", "ling3": "llama-cpp-python: inclusionai-ling-3.0-flash",
    "llama3_json": "vllm: tool_chat_template_llama3.1_json",
    "llama4_pythonic": "vllm: tool_chat_template_llama4_pythonic",
    "minicpm5xml": "llama-cpp-python: openbmb-MiniCPM5-1B", "minimax_m2": "llama-cpp-python: MiniMax-M2",
    "minimax_m3": "llama-cpp-python: MiniMax-M3", "mistral": "vllm: tool_chat_template_mistral3",
    "muse": "llama-cpp-python: muse-glimmer", "muse_glimmer": "llama-cpp-python: muse-glimmer",
    "nemotron_v3": "llama-cpp-python: NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "phi4mini": "vllm: tool_chat_template_phi4_mini", "olmo3": "vllm: tool_chat_template_llama3.2_pythonic",
    "poolside_v1": "llama-cpp-python: poolside-Laguna-XS.2", "pythonic": "vllm: tool_chat_template_llama3.2_pythonic",
    "qwen3coder": "llama-cpp-python: Qwen3-Coder", "seed_oss": "llama-cpp-python: ByteDance-Seed-OSS",
    "step3p5": "llama-cpp-python: StepFun3.5-Flash", "xlam": "vllm: tool_chat_template_xlam_qwen",
}  # fmt: skip
"""Templates by the names of vLLM's test files."""


def compare_calls(chat: Chat, text: str, expected: CALLS, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """Compare the calls that a chat reads with the expected ones. Returns the verdict and the calls."""
    calls = read(chat, text, tools)
    whole = [call for call in calls if not isinstance(call[1], str)]
    if whole == list(expected):
        return ("same" if len(whole) == len(calls) else "drops"), str(calls)
    return ("refuses" if all(call in expected for call in whole) else "other"), str(calls)


def read(chat: Chat, text: str, tools: Sequence[ToolSpec]) -> list[tuple[str, object]]:
    """Names and arguments of the calls in a reply. A reply that begins beyond the thought which a prompt opens."""
    closing = chat.family.thoughts[0][1] if chat.family.opens_thought else ""
    begun = text if not closing or closing in text else closing + text
    return [(call.name, call.arguments) for call in chat.with_tools(tools).parse_text(begun, prefix="0").calls]


# llama.cpp: its tests are chains of methods, which become Python by replacing their brackets.

_TOKEN = re.compile(
    r'R"(?P<fence>\w*)\((?P<raw>.*?)\)(?P=fence)"|"(?P<text>(?:[^"\\]|\\.)*)"|//[^\n]*|/\*.*?\*/'
    r"|(?P<char>'(?:[^'\\]|\\.)')|(?P<word>\w+(?:::\w+)*)|(?P<other>\S)",
    re.DOTALL,
)
_START = re.compile(
    r"peg_tester\((?P<path>[^;]*?)(?:, *detailed_debug)?\);|std::string +(?P<string>\w+) *="
    r"|common_chat_tool +(?P<tool>\w+) *(?=\{)|common_chat_msg +(?P<message>\w+) *=|(?P<test>\btst\.test\()"
)


class Case:
    """One chain `tst.test(…).tools(…).expect(…).run()`."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, {"expect": [], "tools": []}  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def setting(value: Any = True) -> Case:
            self.asked["expect" if name == "expect_tool_calls" else name] = value
            return self

        return setting


def statement(source: str, start: int) -> str:
    """A statement of C++ as a Python expression: strings, brackets of lists and names."""
    parts: list[str] = []
    for token in _TOKEN.finditer(source, start):
        if token["other"] == ";":
            break
        if token["text"] is not None:
            parts.append(repr(json.loads(f'"{_escaped(token["text"])}"')))
        elif token["raw"] is not None:
            parts.append(repr(token["raw"]))
        elif token["other"] in ("{", "}"):
            parts.append("[" if token["other"] == "{" else "]")
        elif token["word"]:
            known = {"true": "True", "false": "False", "std::string": "str"}
            parts.append(known.get(token["word"], token["word"].replace("::", ".")))
        elif token["other"]:
            parts.append(token["other"])
    return " ".join(parts)


def _escaped(text: str) -> str:
    """A C++ string's escapes as JSON's."""
    text = re.sub(r"\\x([0-9a-fA-F]{2})", lambda m: f"\\u00{m[1]}", text)
    return re.sub(r"\\([^\"\\/bfnrtu])", r"\1", text).replace("\t", "\\t")


def calls_of_message(*words: str) -> list[Any]:
    """`simple_assist_msg(content, reasoning, name, arguments, id)`: its calls."""
    return [[words[2], words[3] if len(words) > 3 else "", ""]] if len(words) > 2 and words[2] else []


def llama_cases() -> Iterator[tuple[str, Case]]:
    """Template and case of each statement that can be evaluated."""
    ((_, source),) = members(LLAMA_CPP, r"tests/test-chat\.cpp$", ARCHIVES)
    names: dict[str, Any] = {
        "tst": types.SimpleNamespace(test=Case), "simple_assist_msg": calls_of_message,
        "message_with_tool_calls": lambda name, arguments: [[name, arguments, ""]],
        "message_with_tool_calls_and_reasoning": lambda name, arguments, _: [[name, arguments, ""]],
        "message_with_content_and_tool_call": lambda _, name, arguments: [[name, arguments, ""]],
        "message_with_reasoning_and_tool_call": lambda _, name, arguments: [[name, arguments, ""]],
        "message_with_reasoning_content_and_multiple_tool_calls": lambda _, __, calls: [[*c, ""] for c in calls],
        "COMMON_REASONING_FORMAT_AUTO": "", "COMMON_REASONING_FORMAT_NONE": "", "COMMON_REASONING_FORMAT_DEEPSEEK": "",
    }  # fmt: skip
    template = ""
    for found in _START.finditer(source):
        if found["path"] is not None:
            template = Path(found["path"].strip('"')).stem if found["path"].startswith('"') else ""
            continue
        begin = found.start() if found["test"] else found.end()
        try:
            value = eval(statement(source, begin), names)
        except (SyntaxError, NameError, TypeError, ValueError, AttributeError):
            value = None
        if not found["test"]:
            names[found["string"] or found["tool"] or found["message"]] = value
        elif isinstance(value, Case) and template:
            yield template, value


LEFT_OUT = {"is_partial", "json_schema", "tool_choice", "continue_final_message", "add_generation_prompt", "messages"}


def judge_llama() -> Iterator[tuple[str, str, str, str]]:
    """Family, verdict, text and what was read, of each of llama.cpp's cases."""
    for template, case in llama_cases():
        if LEFT_OUT & {name for name, value in case.asked.items() if value not in (False, [])}:
            continue
        try:
            chat = chat_of(f"llama-cpp-python: {template}", case.asked.get("enable_thinking", True))
            expected = [(name, json.loads(arguments or "{}")) for name, arguments, *_ in case.asked["expect"] or ()]
        except (RetconError, KeyError, ValueError):
            yield f"llama.cpp: {template}", "no chat", case.text, ""
            continue
        tools = [ToolSpec(t[0], t[1], json.loads(t[2])) for t in case.asked["tools"] or () if t]
        yield f"llama.cpp: {template}", *_judged(chat, case.text, expected, tools)


def _judged(chat: Chat, text: str, expected: CALLS, tools: Sequence[ToolSpec]) -> tuple[str, str, str]:
    verdict, calls = compare_calls(chat, text, expected, tools)
    return verdict, text, f"{calls}, not {list(expected)}"


# vLLM: pytest runs its tests; what they import of vllm is made up here, parsers are ours.


class Made(type):
    """A class that has every attribute that it is asked for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda given, **_: cls(**given)) if name == "model_validate" else mock.MagicMock(name=name)


class Record(metaclass=Made):
    """Any class of vLLM's: what it is made with. Two are equal if they are the same call."""

    def __init__(self, *_: object, **given: Any) -> None:
        self.__dict__.update({key: _record(value) for key, value in given.items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def __eq__(self, other: object) -> bool:
        mine, theirs = (one.function or one if isinstance(one, Record) else one for one in (self, other))
        return isinstance(theirs, Record) and (mine.name, mine.arguments) == (theirs.name, theirs.arguments)

    __hash__ = object.__hash__


def _record(value: Any) -> Any:
    return Record(**value) if isinstance(value, dict) and "name" in value else value


class JsonText(str):
    """Arguments, equal to any JSON of the value."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        try:
            return bool(json.loads(self) == json.loads(str(other)))
        except ValueError:
            return False

    def __contains__(self, part: object) -> bool:
        return str(part).replace(" ", "") in self.replace(" ", "")


class Running:
    """The test that is run: the family of its file, and its replies with the calls read in them."""

    family = ""
    read: ClassVar[list[tuple[str, list[tuple[str, object]]]]] = []


class OurParser(metaclass=Made):
    """A parser of vLLM's interface, by the template of the test's file."""

    def __init__(self, tokenizer: object = None, tools: Sequence[Any] | None = None, **_: object) -> None:
        self.given = tools
        try:
            self.chat = chat_of(PARSERS[Running.family], True)
        except (RetconError, KeyError):
            pytest.skip(f"no chat for {Running.family}")

    def extract_tool_calls(self, model_output: str, request: Any = None) -> Record:
        """The calls in a reply."""
        specs = [_spec(tool) for tool in (getattr(request, "tools", None) or self.given or ())]
        calls = read(self.chat, model_output, [spec for spec in specs if spec.name])
        Running.read.append((model_output, calls))
        made = [
            Record(id=uuid4().hex, type="function", function=Record(name=name, arguments=JsonText(text)))
            for name, given in calls
            for text in [json.dumps(given, ensure_ascii=False)]
            if not isinstance(given, str)
        ]
        return class_of("ExtractedToolCallInformation")(tools_called=bool(made), tool_calls=made, content=mock.ANY)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"{name} is not a call's parsing")


def _spec(tool: Any) -> ToolSpec:
    about = (tool.get("function") if isinstance(tool, Mapping) else getattr(tool, "function", None)) or tool
    given = about if isinstance(about, Mapping) else getattr(about, "__dict__", {})
    parameters = given.get("parameters")
    parameters = parameters.__dict__ if isinstance(parameters, Record) else parameters
    return ToolSpec(str(given.get("name") or ""), "", parameters if isinstance(parameters, Mapping) else {})


@cache
def class_of(name: str) -> Any:
    """A class that stands for vLLM's of this name."""
    return Made(name, (OurParser if name.endswith(("Parser", "ParserEngine")) else Record,), {})


class Module(types.ModuleType):
    """Stub module in which every name is a class or vLLM's constant."""

    constants: Mapping[str, object] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.constants:
            return self.constants[name]
        if name.endswith("ParserManager"):
            return mock.MagicMock(**{"get_tool_parser.return_value": OurParser})
        return class_of(name) if name[0].isupper() else mock.MagicMock(name=name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes up what vLLM's tests import and this environment need not have. sources: vLLM's modules by name."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.partition(".")[0] in ("vllm", "transformers", "torch", "openai", "xgrammar", "mistral_common"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Module:
        module = Module(spec.name)
        module.constants = dict(_constants(self.sources.get(spec.name, "")))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _constants(source: str) -> Iterator[tuple[str, object]]:
    """Strings that a module gives names to, also of others of its strings."""
    known: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.BinOp):
            with suppress(NameError, TypeError, AttributeError):
                known[ast.unparse(node.targets[0])] = eval(ast.unparse(node.value), {"__builtins__": {}}, known)
    yield from known.items()


class OnCalls(ast.NodeTransformer):
    """Leaves out what tests assert of other things than calls."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        about = ast.unparse(node.test)
        return ast.Pass() if re.search(r"content|reasoning|\.id\b|isinstance", about) else node


class Verdicts:
    """A plug-in of pytest's that collects verdicts."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        Running.read.clear()
        Running.family = re.sub(r"^test_|_tool_parser$", "", Path(item.path).stem)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when != "call" or not Running.read:
            return
        failed = call.excinfo is not None
        if failed and not call.excinfo.errisinstance(AssertionError | ValueError):
            return  # skipped, or of something that is made up here
        given = [arguments for _, calls in Running.read for _, arguments in calls]
        malformed = any(isinstance(arguments, str) for arguments in given)
        verdict = "drops" if malformed else "same"
        if failed:
            verdict = "refuses" if malformed or not given else "other"
        shown = f"{item.name}: {Running.read}" + (f": {call.excinfo.value}"[:300] if failed else "")
        self.found.append((f"vLLM: {Running.family}", verdict, Running.read[-1][0], shown))


def judge_vllm() -> list[tuple[str, str, str, str]]:
    """Judge our parser by vLLM's own tests."""
    kept = (
        r"/tests/tool_parsers/(?!test_(?:structural|utils))\w+\.py$|/tests/parser/(?:engine|mistral)/\w+\.py$"
        r"|/tests/(?:parser/)?(?:__init__|utils)\.py$"
        r"|/tests/tool_use/(?:__init__|test_kimi_k3_tool_parser|test_muse(?:_glimmer)?)\.py$"
        r"|^[^/]+/vllm/(?:tool_parsers|parser)/\w+\.py$"
    )
    sources: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path, text in members(VLLM, kept, ARCHIVES):
            inner = Path(*Path(path).parts[1:])
            if inner.parts[0] == "vllm":
                sources[".".join(inner.with_suffix("").parts)] = text
            elif "extract" in text or not inner.name.startswith("test_"):
                (Path(folder) / inner).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / inner).write_text(ast.unparse(OnCalls().visit(ast.parse(text))), encoding="utf-8")
        Path(folder, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        sys.path.insert(0, folder)
        sys.meta_path.insert(0, Stubs(sources))
        verdicts = Verdicts()
        asked = ["-q", "-p", "no:cacheprovider", "--tb=no", "--continue-on-collection-errors", "-k", "not streaming"]
        asked += ["-c", f"{folder}/pytest.ini", "--rootdir", folder, f"{folder}/tests"]
        with redirect_stdout(io.StringIO()):
            pytest.main(asked, plugins=[verdicts])
    return verdicts.found


@cache
def templates() -> dict[str, str]:
    """Templates by distribution and name."""
    return {name: text for source in SOURCES for name, text in fetched(source, ARCHIVES)}


@cache
def chat_of(template: str, thinking: bool) -> Chat:
    """The chat of a template. Raises RetconError, KeyError."""
    return opened(templates()[template], template, **({} if thinking else {"enable_thinking": False})).chat


ARCHIVES: Path | None = None


def main() -> None:
    global ARCHIVES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--archives", type=Path)
    asked = parser.parse_args()
    ARCHIVES = asked.archives
    templates()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for family, verdict, text, why in [*judge_llama(), *judge_vllm()]:
        counts[family][verdict] += 1
        if asked.show and verdict != "same":
            print(f"{family}: {verdict}: {text!r}: {why}\n")
    columns = ("same", "refuses", "other", "drops", "no chat")
    print(f"| tests of | cases | {' | '.join(columns)} |\n|---{'|---' * (len(columns) + 1)}|")
    total: collections.Counter[str] = sum(counts.values(), collections.Counter())
    for family, found in [*sorted(counts.items()), ("all", total)]:
        print(f"| {family} | {sum(found.values())} | {' | '.join(str(found[column] or '') for column in columns)} |")


if __name__ == "__main__":
    main()
