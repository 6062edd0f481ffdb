"""What calls are shown in verifiers, where nobody derives lengths from a model; without verifiers and datasets."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retcon.core.types import ToolCall


class Environment:
    """verifiers' ToolEnv."""

    def __init__(self, **about: Any) -> None:
        self.about = about


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    verifiers, datasets = ModuleType("verifiers"), ModuleType("datasets")
    for name, value in {
        "ToolEnv": Environment, "Rubric": list, "Tool": dict, "InfraError": RuntimeError,
        "cleanup": lambda method: method, "teardown": lambda method: method,
    }.items():  # fmt: skip
        setattr(verifiers, name, value)
    vars(datasets)["Dataset"] = type("Dataset", (), {"from_list": staticmethod(list)})
    monkeypatch.setitem(sys.modules, "verifiers", verifiers)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.delitem(sys.modules, "retcon.plugins.verifiers", raising=False)
    yield import_module("retcon.plugins.verifiers")
    sys.modules.pop("retcon.plugins.verifiers", None)


@pytest.mark.parametrize(("keys", "shown"), [((), 60), (("sandbox.output_chars=30",), 30)])
def test_what_a_call_of_custom_tasks_prints_is_shown(
    plugin: Any, tmp_path: Path, keys: tuple[str, ...], shown: int
) -> None:
    """And not as much of it as the number tasks have room for."""
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(20)))
    env = plugin.load_environment(
        "", ["task.kind=file", f"task.path={data}", "task.evaluation_share=0.5", "sandbox.workers=1", *keys],
        train=2, evaluation=2,
    )  # fmt: skip
    task = env.about["dataset"][0]["info"]

    async def called() -> str:
        state = await env.setup_state({"info": task, "trajectory_id": "r"})
        try:
            (told,) = await state["retcon"].tools.run([ToolCall("c", "python", {"code": "print('6' * 60)"}, 0)])
            return str(told.text)
        finally:
            await env.close_tools(state)
            await env.end_sandbox()

    assert asyncio.run(asyncio.wait_for(called(), 120)) == "6" * shown
