"""From a recipe to objects."""

from __future__ import annotations

from typing import Any

import pytest

from retcon.build import (
    build_engine_chat,
    build_evaluation_repair,
    build_repair,
    build_sampling,
    build_schedule,
    build_tools,
    build_training_engine,
)
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError
from retcon.engine.types import SamplingParams
from retcon.models.locating import BASE
from retcon.purify.saar import Saar

CHAT = Chat(ByteTokenizer())


def test_an_engine_that_takes_no_weights_is_not_trained_with() -> None:
    model: Any = None
    with pytest.raises(RecipeError, match=r"engine\.kind = 'scripted' cannot be trained with"):
        build_training_engine(load_recipe(None, ["engine.kind=scripted"]), model, CHAT, max_requests=4)


@pytest.mark.parametrize("kind", ["scripted", "openai"])
def test_training_with_an_engine_that_cannot_be_is_refused_by_name_before_work_starts(kind: str) -> None:
    recipe = load_recipe(None, [f"engine.kind={kind}"])
    with pytest.raises(RecipeError, match=rf"engine\.kind = '{kind}' cannot be trained with: "):
        recipe.engine.check_training(recipe)
    load_recipe(None).engine.check_training(load_recipe(None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ((), "chat style 'markdown'.*: set model.style = 'hermes' or 'qwen'"),
        (("engine.kind=openai", "engine.url=http://127.0.0.1:9", "engine.calls=fence"), "engine.calls = 'native'"),
    ],
)
def test_a_tool_that_the_model_has_no_words_to_call_is_refused(keys: tuple[str, ...], told: str) -> None:
    """It would never be called, and nothing said so."""
    tools = 'rollout.tools=["python", "keys.world:Search"]'
    with pytest.raises(RecipeError, match=f"the model cannot call the tool 'search'.*{told}"):
        build_engine_chat(load_recipe(None, [tools, *keys]), BASE)
    build_engine_chat(load_recipe(None, keys), BASE)
    build_engine_chat(load_recipe(None, [tools, "model.style=hermes"]), BASE)


def test_repairs_of_training_and_of_evaluation() -> None:
    assert build_repair(load_recipe(None)) is None
    assert build_repair(load_recipe(None, ["repair.kind=saar", "repair.gamma=0.3"])) == Saar(gamma=0.3)
    assert build_evaluation_repair(load_recipe(None, ["repair.kind=saar"])) is None
    same = ["repair.kind=saar", "repair.gamma=0.3", "evaluate.repair=saar"]
    assert build_evaluation_repair(load_recipe(None, same)) == Saar(gamma=0.3)
    assert build_evaluation_repair(load_recipe(None, same[2:])) == Saar()
    with pytest.raises(RecipeError, match=r"evaluate\.repair = .*did you mean 'saar'"):
        load_recipe(None, ["evaluate.repair=sar"])


def test_sampling_and_the_share_that_is_purified() -> None:
    recipe = load_recipe(None, ["rollout.temperature=0.7", "rollout.top_k=5", "repair.probability=0.4"])
    assert build_sampling(recipe) == SamplingParams(temperature=0.7, top_k=5, max_tokens=320)
    assert build_schedule(recipe).at(9) == 0.4
    falling = load_recipe(None, ["repair.probability_schedule=[[1, 1.0], [3, 0.0]]"])
    assert [build_schedule(falling).at(step) for step in (1, 2, 3)] == [1.0, 0.5, 0.0]


def test_two_tools_of_one_name_are_refused() -> None:
    sandbox: Any = None
    tools = build_tools(load_recipe(None), sandbox)
    assert list(tools) == ["python"]
    with pytest.raises(RecipeError, match="has the name of another tool, 'python'"):
        build_tools(load_recipe(None, ['rollout.tools=["python", "retcon.tools.kinds.python:Python"]']), sandbox)
