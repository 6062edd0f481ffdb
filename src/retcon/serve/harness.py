"""Harness functions, which solve tasks with a model at a URL."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsFloat
from urllib.parse import quote

from retcon.core.errors import RecipeError
from retcon.core.registry import import_object
from retcon.store.fingerprint import files_fingerprint
from retcon.tasks.types import Task

KEY = "rollout.harness"


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """The model's endpoint for one rollout. url: its own base URL of OpenAI's API, with `/v1`. name: the model's, for
    requests. key: for clients that need one; it is not checked."""

    url: str
    name: str
    key: str = "none"

    def agent(self, name: str) -> ModelEndpoint:
        """Return an agent's endpoint; its conversations are children of the turn in which they began."""
        base = self.url.removesuffix("/v1")
        return replace(self, url=f"{base}{'/' if '/agents/' in base else '/agents/'}{quote(name, safe='')}/v1")


HarnessReturn = str | SupportsFloat | None
"""Return value of a harness: the answer to grade, the reward, or None for the model's last message."""
HarnessFunction = Callable[[Task, ModelEndpoint], HarnessReturn | Awaitable[HarnessReturn]]


def find_harness(path: str) -> HarnessFunction:
    """Import a harness function. Raises RecipeError if it does not exist or cannot be called with a task and an
    endpoint."""
    if ":" not in path:
        raise RecipeError(f"{KEY}: '{path}' is not the import path of a function: write it as my_module:solve")
    try:
        found = import_object(path)
    except ImportError as error:
        raise RecipeError(f"{KEY}: '{path}' cannot be imported: {error}") from error
    try:
        fits = callable(found) and not isinstance(found, type) and bool(inspect.signature(found).bind(None, None))
    except (TypeError, ValueError):  # also built-ins without a signature
        fits = False
    if not fits:
        raise RecipeError(f"{KEY}: '{path}' is {found!r:.80}, where a function solve(task, endpoint) belongs")
    solve: HarnessFunction = found
    return solve


def harness_fingerprint(path: str) -> str:
    """Hash the files of a harness: its module's and its function's.

    Their imports do not count. Raises RecipeError as `find_harness`."""
    found = inspect.unwrap(find_harness(path))
    own = found if inspect.isfunction(found) else type(found)
    names = dict.fromkeys((path.partition(":")[0], own.__module__))
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names if name not in sys.stdlib_module_names]
    return files_fingerprint(Path(file) for file in files if file)


async def run_harness(solve: HarnessFunction, task: Task, endpoint: ModelEndpoint) -> str | float | None:
    """Run a harness; return its answer or reward. A synchronous one runs in its own thread, which continues if this is
    cancelled. Raises the function's errors, and RecipeError for an invalid return value."""
    if inspect.iscoroutinefunction(solve) or inspect.iscoroutinefunction(getattr(solve, "__call__", None)):  # noqa: B004
        returned = await solve(task, endpoint)  # type: ignore[misc]
    else:
        returned = await _in_thread(lambda: solve(task, endpoint))
        if inspect.isawaitable(returned):
            returned = await returned
    if returned is None or isinstance(returned, str):
        return returned
    if isinstance(returned, SupportsFloat):  # also numpy's and torch's
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            if math.isfinite(reward := float(returned)):
                return reward
    raise RecipeError(
        f"{KEY}: it returned {returned!r:.80} of task {task.id!r:.80}: an answer is text, a reward a finite number; "
        "None leaves the answer to the model's last message"
    )


async def _in_thread(call: Callable[[], object]) -> object:
    """Run `call` in a daemon thread: asyncio's own threads are few, and a rollout may wait in one for others."""
    ended: Future[object] = Future()

    def run() -> None:
        ended.set_running_or_notify_cancel()
        try:
            ended.set_result(call())
        except StopIteration as stopped:  # which no future takes
            ended.set_exception(RuntimeError(f"StopIteration: {stopped}"))
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            ended.set_exception(error)

    threading.Thread(target=run, name="harness", daemon=True).start()
    return await asyncio.wrap_future(ended)
