"""[engine]: where an engine elsewhere is, and how it is asked."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from keys.acting import Lab, acts, run
from retcon.build import (
    build_chat,
    build_engine,
    build_engine_chat,
    build_policy,
    build_training_engine,
    open_context,
    resolve_lengths,
)
from retcon.chat.chat import Chat
from retcon.config.schema import Recipe, RolloutSection
from retcon.core.errors import EngineError, RetconError
from retcon.core.types import Trajectory
from retcon.engine.types import SamplingParams
from retcon.engine.vllm.engine import VLLMEngine
from retcon.rollout.context import RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tasks.registry import task_set
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool
from servers.answering import Answer, Asked, Server, python, said, serving
from servers.speaking_vllm import TOKENIZER, VLLM

OPENAI = ("engine.kind=openai", "engine.url=http://127.0.0.1:9/v1", "engine.attempts=1", "engine.patience=0",
          "rollout.max_tokens=4000", "rollout.max_turns=5")  # fmt: skip
TASK = Task("t", "6 times 7?", "42")


def talk(
    recipe: Recipe, lab: Lab, reply: Callable[[Asked], Answer], *, rollouts: int = 1, models: tuple[str, ...] = ("m",)
) -> tuple[list[Trajectory], Server]:
    """Rollouts with the recipe's engine, wherever its URL leads, its server's answers by `reply`."""

    async def main() -> list[Trajectory]:
        chat = build_engine_chat(recipe, lab.base)
        engine = build_policy(recipe, lab.base, chat)
        async with open_context(recipe, engine, chat) as context:
            context.tools["python"] = ScriptedTool(lambda code: ("42", "ok", None))  # type: ignore[index]
            return await asyncio.gather(*(run_rollout(TASK, context, id=str(n), seed=n) for n in range(rollouts)))

    with serving(reply, models) as server:
        if "127.0.0.1:9" in recipe.engine.url:  # type: ignore[attr-defined]
            recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"url": server.url})})
        return run(main()), server


def asked_for(recipe: Recipe, lab: Lab, *answers: Answer, models: tuple[str, ...] = ("m",)) -> list[dict[str, Any]]:
    left = list(answers or [said("42")])
    _, server = talk(recipe, lab, lambda _: left.pop(0), models=models)
    return [asked.body for asked in server.asked]


@acts("engine.url", ("", "empty"), ("http://127.0.0.1:1/v1", "down"), ("http://127.0.0.1:9/v1", "there"), given=OPENAI)
def where_the_model_is(recipe: Recipe, lab: Lab) -> str:
    try:
        talk(recipe, lab, lambda _: said("42"))
    except RetconError as error:
        return (
            "empty" if "it is empty" in str(error) else "down" if "does not answer: ClientConnect" in str(error) else ""
        )
    return "there"


@acts("engine.model", ("", "several"), ("a", "a"), ("b", "b"), given=OPENAI)
def model_that_is_asked(recipe: Recipe, lab: Lab) -> str:
    try:
        return str(asked_for(recipe, lab, models=("a", "b"))[0]["model"])
    except EngineError as error:
        return "several" if "several models: name one" in str(error) else ""


@acts("engine.calls", ("native", (True, 2)), ("fence", (False, 1)), given=OPENAI)
def tools_are_shown_and_how_often_the_model_is_asked(recipe: Recipe, lab: Lab) -> tuple[bool, int]:
    bodies = asked_for(recipe, lab, said("", python("6*7")), said("42"))
    return "tools" in bodies[0], len(bodies)


@acts(
    "engine.instructions", ("Be right.", "Be right."), ("Be kind.", "Be kind."), given=(*OPENAI, "engine.calls=fence")
)
def what_a_model_is_told_of_tools(recipe: Recipe, lab: Lab) -> str:
    return str(asked_for(recipe, lab)[0]["messages"][0]["content"])


@acts("engine.key_env", ("", ""), ("KEY_OF_TESTS", "Bearer lab"), ("NO_SUCH_KEY", "not set"), given=OPENAI)
def key_that_is_sent(recipe: Recipe, lab: Lab) -> str:
    os.environ["KEY_OF_TESTS"] = "lab"
    try:
        return talk(recipe, lab, lambda _: said("42"))[1].asked[0].authorization
    except RetconError as error:
        return "not set" if "NO_SUCH_KEY, which is not set" in str(error) else ""


@acts("engine.context", (900, True), (9000, False), given=("engine.kind=openai", "engine.url=http://127.0.0.1:9/v1"))
def lengths_follow_the_server(recipe: Recipe, lab: Lab) -> bool:
    settled, _ = resolve_lengths(recipe.model_copy(update={"rollout": RolloutSection()}), lab.base, task_set("numbers"))
    return settled.rollout.max_tokens < 900


@acts("engine.answer_tokens", (0, True), (7, False), given=OPENAI)
def a_message_may_be_as_long_as_there_is_room(recipe: Recipe, lab: Lab) -> bool:
    return bool(asked_for(recipe, lab)[0]["max_tokens"] > 7)


@acts("engine.seeds", (True, True), (False, False), given=OPENAI)
def requests_bring_a_seed(recipe: Recipe, lab: Lab) -> bool:
    return "seed" in asked_for(recipe, lab)[0]


@acts("engine.seconds", (0.001, "infrastructure"), (60.0, "answer"), given=OPENAI)
def a_slow_server_is_given_up(recipe: Recipe, lab: Lab) -> str:
    released = threading.Event()

    def reply(_: Asked) -> Answer:
        if recipe.engine.seconds < 1:  # type: ignore[attr-defined]
            released.wait(30)
        return said("42")

    try:
        (one,), _ = talk(recipe, lab, reply)
    except EngineError:  # the list of models came too late already
        return "infrastructure"
    finally:
        released.set()
    return one.stop


@acts("engine.attempts", (1, "infrastructure"), (2, "answer"), given=OPENAI)
def a_server_that_fails_once(recipe: Recipe, lab: Lab) -> str:
    left = [Answer({}, 503, {"Retry-After": "0"}), said("42")]
    (one,), _ = talk(recipe, lab, lambda _: left.pop(0))
    return one.stop


@acts("engine.patience", (0, "infrastructure"), (30, "answer"), given=OPENAI)
def a_server_that_went_away(recipe: Recipe, lab: Lab) -> str:
    left = [Answer(status=None), Answer({}, 503), said("42")]
    (one,), _ = talk(recipe, lab, lambda _: left.pop(0))
    return one.stop


@acts("engine.at_once", (1, 1), (3, 3), given=OPENAI)
def requests_at_a_time(recipe: Recipe, lab: Lab) -> int:
    lock, now, most = threading.Lock(), 0, 0
    room = threading.Barrier(recipe.engine.at_once)  # type: ignore[attr-defined]

    def reply(_: Asked) -> Answer:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        room.wait(30)
        with lock:
            now -= 1
        return said("42")

    talk(recipe, lab, reply, rollouts=6)
    return most


VLLM_HERE = ("engine.kind=vllm", "rollout.max_tokens=40", "rollout.lookahead_tokens=0")


def script(lab: Lab, text: str) -> str:
    """An executable that is no Python with vLLM."""
    file = lab.folder / f"server-{abs(hash(text))}"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def why_not(recipe: Recipe, lab: Lab, **changes: object) -> str:
    """What is said of a server that does not come up."""
    section = recipe.engine.model_copy(update=changes)
    own = recipe.model_copy(update={"engine": section})

    async def main() -> None:
        chat = build_chat(own, lab.base)
        async with open_context(own, build_policy(own, lab.base, chat), chat):
            raise AssertionError("it is up")

    with pytest.raises(RetconError) as caught:
        run(main())
    return str(caught.value)


@acts("engine.python", ("", "neither is given"), ("/no/such/python", "cannot be started"), given=VLLM_HERE)
def what_a_server_is_started_with(recipe: Recipe, lab: Lab) -> str:
    said = why_not(recipe, lab)
    return next(part for part in ("neither is given", "cannot be started") if part in said)


@acts("engine.arguments", ([], False), (["--enforce-eager"], True), given=VLLM_HERE)
def arguments_that_a_server_is_given(recipe: Recipe, lab: Lab) -> bool:
    return "--enforce-eager" in why_not(recipe, lab, python=script(lab, 'echo "$@"'))


@acts("engine.start_seconds", (0.1, "did not answer within"), (60.0, "ended before it answered"), given=VLLM_HERE)
def a_server_that_takes_long_to_start(recipe: Recipe, lab: Lab) -> str:
    slow = recipe.engine.start_seconds < 1  # type: ignore[attr-defined]
    said = why_not(recipe, lab, python=script(lab, "exec sleep 600" if slow else "exit 3"))
    return next(part for part in ("did not answer within", "ended before it answered") if part in said)


@acts("engine.patience", (0.001, "infrastructure"), (60.0, "turns"), given=VLLM_HERE)
def a_server_that_is_away_for_a_while(recipe: Recipe, lab: Lab) -> str:
    server_is = VLLM({"max_model_len": 4096})
    impatient = recipe.engine.patience < 1  # type: ignore[attr-defined]
    asked = 0

    def reply(asked_for: Asked) -> Answer:
        nonlocal asked
        asked += bool(asked or "logprobs" in asked_for.body.get("sampling_params", ()))
        # Away for good, or until it was asked twice in vain.
        server_is.down = asked > 0 and (impatient or asked < 3)
        return server_is(asked_for)

    async def main(own: Recipe) -> str:
        chat = Chat(TOKENIZER)
        engine = build_engine(own, lambda: None, chat)  # type: ignore[arg-type,return-value]
        async with open_context(own, engine, chat) as context:
            short = replace(context, limits=RolloutLimits(200, 1), sampling=SamplingParams(max_tokens=3))
            return (await run_rollout(TASK, short, id="a", seed=0)).stop

    with serving(reply, ()) as server:
        url = server.url.removesuffix("/v1")
        stop = run(main(recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"url": (url,)})})))
    return "infrastructure" if stop == "infrastructure" else "turns"


def handed_over(recipe: Recipe, lab: Lab) -> VLLM:
    """A server that was given what the recipe trains."""
    import torch

    from retcon.models.lora import Adapter
    from retcon.models.placing import start_model
    from retcon.train.rollouts import EngineWeights

    server_is, model = VLLM({"max_model_len": 4096, "rank": 8}), start_model(lab.base, 0)
    weights = EngineWeights(model, torch.float32, Adapter(model, recipe.lora, seed=0) if recipe.lora.rank else None)

    async def main(url: str) -> None:
        own = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"url": (url,)})})
        engine = build_training_engine(own, weights.model, Chat(TOKENIZER), max_requests=1, adapters=weights.adapters)
        assert isinstance(engine, VLLMEngine)
        async with engine.connected():
            await engine.follow()

    with serving(server_is, ()) as server:
        run(main(server.url.removesuffix("/v1")))
    return server_is


@acts("engine.lora", (False, 0), (True, 1), given=(*VLLM_HERE, "lora.rank=4"))
def adapters_that_go_to_servers_as_such(recipe: Recipe, lab: Lab) -> int:
    return len(handed_over(recipe, lab).adapters)


@acts("engine.weights_folder", ("", False), ("/var/tmp", True), given=VLLM_HERE)
def the_folder_by_which_weights_go(recipe: Recipe, lab: Lab) -> bool:
    return handed_over(recipe, lab).loaded[0].startswith("/var/tmp/")
