"""ATIF: steps are numbered, tokens have ids, and some steps are none of the model's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from foreign import FORMATS, REPAIRED, answer, user, works
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import purify_transcript

IDS = {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-0.5]}


def record(*steps: Any) -> dict[str, Any]:
    return copy.deepcopy(FORMATS["atif"](steps or REPAIRED))


def test_after_a_repair_the_steps_are_numbered_anew_and_their_ids_emptied() -> None:
    value = record()
    for step in value["steps"][1:]:
        step["metrics"] = {"prompt_tokens": 7, **IDS}
    clean, count = purify_transcript(value)
    assert count.shallow == 1
    assert [step["step_id"] for step in clean["steps"]] == [1, 2, 3]
    emptied = {"prompt_tokens": 7, **{key: [] for key in IDS}}
    assert [step.get("metrics") for step in clean["steps"]] == [None, emptied, emptied]
    assert clean["steps"][1]["observation"] == value["steps"][2]["observation"]
    assert [step["step_id"] for step in value["steps"]] == [1, 2, 3, 4]


def test_numbers_that_do_not_count_stay() -> None:
    value = record()
    for step in value["steps"]:
        step["step_id"] *= 10
    assert [step["step_id"] for step in purify_transcript(value)[0]["steps"]] == [10, 30, 40]


@pytest.mark.parametrize(
    "thoughts", [("A plain root.", "Sorry, no sqroot."), (None, "Sorry, no sqroot."), ("So.", None)]
)
def test_what_was_thought_goes_where_its_words_go(thoughts: tuple[Any, Any]) -> None:
    value = record()
    for step, thought in zip(value["steps"][1:], thoughts, strict=False):
        step.update({} if thought is None else {"reasoning_content": thought})
    value["steps"][3]["reasoning_content"] = "The earlier code failed with an error. The root is plausible."
    clean, count = purify_transcript(value)
    assert count.shallow == 1
    assert (clean["steps"][1].get("reasoning_content"), clean["steps"][1]["message"]) == (thoughts[0], "let me see")
    assert clean["steps"][2] == {**value["steps"][3], "step_id": 3, "reasoning_content": "The root is plausible."}


@pytest.mark.parametrize("label", [{"is_copied_context": True}, {"llm_call_count": 0}])
def test_a_step_that_was_copied_or_that_no_model_wrote_is_not_learnt(label: dict[str, Any]) -> None:
    value = record(user("?"), works("f()", "1"), answer("4"))
    value["steps"][1] |= label
    found = Detector().format_of(value)
    assert found is not None
    assert found.read(value, "t").speakers[0].learnt == [False, True]


def delegating(*ids: str) -> dict[str, Any]:
    """A trajectory whose calls are made by subagents, one each."""
    value = record()
    for step, own in zip(value["steps"][1:3], ids, strict=True):
        step["observation"]["results"][0]["subagent_trajectory_ref"] = [{"trajectory_id": own}]
    inner = [{**record(user("?"), answer("4")), "trajectory_id": own} for own in dict.fromkeys((*ids, "unnamed"))]
    return {**value, "subagent_trajectories": inner}


def test_a_subagent_goes_with_the_only_call_that_names_it() -> None:
    clean, count = purify_transcript(value := delegating("failed", "fixed"))
    assert count.shallow == 1
    assert clean["subagent_trajectories"] == value["subagent_trajectories"][1:]
    for same in (delegating("both", "both"), {**delegating("failed", "fixed"), "subagent_trajectories": None}):
        assert purify_transcript(same)[0]["subagent_trajectories"] == same["subagent_trajectories"]
    # Those that stay are repaired in their places, be they held in one that is repaired itself.
    value["subagent_trajectories"][1] = {**delegating("within", "fixed within"), "trajectory_id": "fixed"}
    nested, count = purify_transcript(value)
    assert count.shallow == 2
    (first, last) = nested["subagent_trajectories"]
    assert [one["trajectory_id"] for one in first["subagent_trajectories"]] == ["fixed within", "unnamed"]
    assert last == value["subagent_trajectories"][2]


def test_a_subagent_stays_that_another_points_to_or_that_no_call_names_by_an_id() -> None:
    value = delegating("failed", "fixed")
    refs = [{"trajectory_id": "failed"}]
    value["subagent_trajectories"][1]["steps"][1]["observation"] = {"results": [{"subagent_trajectory_ref": refs}]}
    assert purify_transcript(value)[0]["subagent_trajectories"] == value["subagent_trajectories"]
    apart = delegating("failed", "fixed")
    apart["steps"][1]["observation"]["results"][0]["subagent_trajectory_ref"] = [{"trajectory_path": "a.json"}]
    apart["subagent_trajectories"][2].pop("trajectory_id")
    assert purify_transcript(apart)[0]["subagent_trajectories"] == apart["subagent_trajectories"]


@pytest.mark.parametrize(("told", "tells"), [(4, 3), (9, 9), (None, None)])
def test_of_the_final_metrics_the_number_of_steps_is_that_of_the_steps_that_are_left(told: Any, tells: Any) -> None:
    spent = {"total_prompt_tokens": 9, "total_cost_usd": 0.5}
    inner = {**record(), "trajectory_id": "b", "final_metrics": {"total_steps": told, **spent}}
    value = {**record(user("?"), answer("4")), "subagent_trajectories": [inner], "final_metrics": {"total_steps": 2}}
    clean, count = purify_transcript(value)
    assert count.shallow == 1
    assert clean["final_metrics"] == {"total_steps": 2}
    assert clean["subagent_trajectories"][0]["final_metrics"] == {"total_steps": tells, **spent}


def test_the_trajectories_of_subagents_are_transcripts_of_their_own() -> None:
    deepest, inner = {**record(), "trajectory_id": "c"}, {**record(user("?"), answer("4")), "trajectory_id": "b"}
    empty: dict[str, Any] = {"trajectory_id": "none", "steps": []}
    inner["subagent_trajectories"] = [deepest, empty]
    for own in (record(), record(user("?"), answer("so"))):
        value = {**own, "subagent_trajectories": [inner, {**record(), "trajectory_id": "d"}]}
        clean, count = purify_transcript(value)
        main = int(own == record())
        assert (count.transcripts, count.calls, count.failed, count.shallow) == (1, 2 * main + 4, main + 2, main + 2)
        assert count.changed == 1
        repaired = purify_transcript(record())[0]["steps"]
        first, last = clean["subagent_trajectories"]
        assert clean["steps"] == (repaired if main else own["steps"])
        assert first == {**inner, "subagent_trajectories": [{**deepest, "steps": repaired}, empty]}
        assert last == {**value["subagent_trajectories"][1], "steps": repaired}
        found = Detector().format_of(value)
        assert found is not None
        assert [one.id for one in found.read(value, "t").trajectories] == ["t.0", "t.1", "t.2", "t.3"]
        assert purify_transcript(clean)[0] == clean
