"""Transcripts as other people have them: the same steps written in each format that `retcon purify` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreign.agents import autogen, autogen_chat, autogen_code, openhands, openhands_sdk, ours, smolagents, swe_agent
from foreign.calls_apart import (
    anthropic,
    inspect,
    langchain,
    langchain_dumpd,
    langchain_flat,
    messages,
    nemo_gym,
    responses,
    traces,
)
from foreign.calls_in_blocks import adk, atif, bedrock, gemini, pydantic_ai
from foreign.calls_in_text import (
    arpo,
    hermes,
    markdown,
    mathcoder,
    mint,
    qwen_coder,
    retool,
    retool_text,
    sharegpt,
    sharegpt_functions,
    slime,
    text,
    verl,
    verl_coder,
)
from foreign.sessions import claude_code, codex
from foreign.steps import FAILED, FIXED, REPAIRED, Step, answer, fails, user, works

FORMATS: dict[str, Callable[[Sequence[Step]], dict[str, Any]]] = {
    "messages": messages,
    "inspect": inspect,
    "hermes": hermes,
    "qwen_coder": qwen_coder,
    "verl_coder": verl_coder,
    "mint": mint,
    "mathcoder": mathcoder,
    "sharegpt": sharegpt,
    "sharegpt_functions": sharegpt_functions,
    "markdown": markdown,
    "text": text,
    "ours": ours,
    "anthropic": anthropic,
    "responses": responses,
    "nemo_gym": nemo_gym,
    "smolagents": smolagents,
    "swe_agent": swe_agent,
    "openhands": openhands,
    "openhands_sdk": openhands_sdk,
    "autogen": autogen,
    "autogen_code": autogen_code,
    "autogen_chat": autogen_chat,
    "langchain": langchain,
    "langchain_flat": langchain_flat,
    "langchain_dumpd": langchain_dumpd,
    "retool": retool,
    "retool_text": retool_text,
    "arpo": arpo,
    "verl": verl,
    "slime": slime,
    "traces": traces,
    "gemini": gemini,
    "adk": adk,
    "pydantic_ai": pydantic_ai,
    "bedrock": bedrock,
    "atif": atif,
    "claude_code": claude_code,
    "codex": codex,
}
NAMES = {
    "inspect": "messages", "sharegpt_functions": "sharegpt", "text": "markdown", "ours": "retcon",
    "nemo_gym": "responses", "swe_agent": "swe-agent", "openhands_sdk": "openhands", "autogen_code": "autogen",
    "autogen_chat": "autogen", "langchain_flat": "langchain", "langchain_dumpd": "langchain", "retool_text": "retool",
    "verl": "hermes", "slime": "hermes", "qwen_coder": "qwen3_coder", "verl_coder": "qwen3_coder",
    "adk": "gemini", "pydantic_ai": "pydantic-ai", "claude_code": "claude-code",
}  # fmt: skip
"""What `Detector` calls them, where that is another name."""

__all__ = [
    "FAILED", "FIXED", "FORMATS", "NAMES", "REPAIRED", "Step", "answer", "fails", "hermes", "inspect", "markdown",
    "messages", "mint", "ours", "user", "works",
]  # fmt: skip
