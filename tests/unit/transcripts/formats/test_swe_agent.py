"""SWE-agent's steps, and the messages that they are part of."""

from __future__ import annotations

from typing import Any

import pytest

from retcon.purify.offline import Repairer
from retcon.transcripts.purifier import purify_transcript

ERROR = "Traceback (most recent call last):\n  File \"<x>\", line 1, in <module>\nNameError: name 'pi' is not defined"
FAILED, WORKS = "python -c 'print(pi)'", "python -c 'from math import pi; print(pi)'"


def said(thought: str, action: str, *thinking: str) -> dict[str, Any]:
    blocks = {"thinking_blocks": [{"thinking": one} for one in thinking]} if thinking else {}
    return {"role": "assistant", "content": thought, "thought": thought, "action": action, **blocks}


def traj(*steps: tuple[dict[str, Any], str]) -> dict[str, Any]:
    trajectory = [
        {"action": one["action"], "observation": seen, "response": one["thought"], "thought": one["thought"]}
        for one, seen in steps
    ]
    history: list[dict[str, Any]] = [{"role": "user", "content": "Print pi."}]
    for one, seen in steps:
        history += [one, {"role": "tool", "content": seen}]
    return {"trajectory": trajectory, "history": history}


@pytest.mark.parametrize("own", ["I run it.", "I print it."])
@pytest.mark.parametrize("thinking", [("Just run.",), ()])
def test_after_a_shallow_repair_the_thinking_is_that_of_the_words(thinking: tuple[str, ...], own: str) -> None:
    record = traj(
        (said("I run it.", FAILED, *thinking), ERROR),
        (said(own, WORKS, "The previous run failed: the import is missing."), "3.14"),
        (said("Done.", "submit", "All is well."), ""),
    )
    clean, count = purify_transcript(record, offline=Repairer(state="ignore"))
    assert count.shallow == 1
    assert clean["history"][1] == said("I run it.", WORKS, *thinking)
    assert clean["history"][3:] == record["history"][5:]
