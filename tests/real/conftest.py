"""Real servers, from environments of their own: `make integration` builds those and runs this folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retcon.build import build_tasks
from retcon.chat.opening import open_chat
from retcon.config.load import load_recipe
from retcon.engine.types import Adapters
from retcon.engine.vllm.process import Launch, Server
from retcon.models.locating import BASE, locate
from retcon.train.demos.making import write_demonstrations
from retcon.train.sft import run_sft
from servers.vllm import Start

ARGUMENTS = ("--enforce-eager",)


@pytest.fixture(scope="session")
def python() -> str:
    """Of the environment that has vLLM."""
    return os.path.abspath(os.environ["RETCON_VLLM_PYTHON"])  # noqa: PTH100  not resolved: it is a link in a venv


@pytest.fixture
def start(python: str) -> Iterator[Start]:
    """Starts servers of a folder, in a dtype, that take adapters; they end with the test."""
    started: list[Server] = []

    def begin(folder: Path, *, dtype: str = "float32", max_len: int = 640, adapters: Adapters | None = None) -> Server:
        launch = Launch(python, folder, dtype, max_len, arguments=ARGUMENTS, adapters=adapters)
        started.append(Server(launch, 600))
        asyncio.run(started[-1].start())
        return started[-1]

    yield begin
    for server in started:
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model after a short cold start: it calls Python, often wrongly, and is sometimes right."""
    folder = tmp_path_factory.mktemp("beginner")
    keys = ("sft.steps=80", "sft.demonstrations=800", "sft.checkpoint_every=1000")
    recipe = load_recipe("quickstart/saar", keys)
    tasks = build_tasks(recipe)
    write_demonstrations(recipe, open_chat(BASE, style="markdown"), folder / "demonstrations.jsonl", tasks=tasks)
    final = run_sft(recipe, folder / "demonstrations.jsonl", folder / "run")
    return Path(shutil.copytree(final, folder / "final"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    from retcon.core.errors import CheckpointError

    try:
        return locate("smollm2-135m")
    except CheckpointError:
        pytest.skip("SmolLM2-135M was not fetched: retcon model get smollm2-135m")
