#!/usr/bin/env python
"""Demonstrations of which half begin with clean steps: is SAAR behind because clean histories are unknown?

    python benchmarks/studies/clean_prefixes.py COMPARISON NEW

COMPARISON is a finished or begun `retcon compare` on number problems, whose cold_start/demonstrations-N.jsonl are
read; NEW is the folder of a comparison that is to learn from the changed ones. In half of the demonstrations the failed
calls before the second or the third step are taken out, and nothing of what is left before that step is learnt: so the
model learns what comes after a clean history, and fails as often as before in its first tries.
"""

from __future__ import annotations

import argparse
import random
import shutil
from dataclasses import replace
from pathlib import Path

from retcon.chat.tokenizer import HubTokenizer, load_tokenizer
from retcon.config.load import load_recipe
from retcon.core.types import Segment, Trajectory, Turn
from retcon.models.locating import model_folder
from retcon.store import jsonl

AGAIN = "again: "
"""What the teacher's turns after an error begin with."""
SHARE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    tokenizer = load_tokenizer(model_folder(load_recipe("mini/dapo-baseline").model.path))
    out = options.new / "cold_start"
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted((options.comparison / "cold_start").glob("demonstrations-*.jsonl")):
        rng = random.Random(file.name)
        made = [
            clean_before(one, rng.choice((1, 2)), tokenizer) if rng.random() < SHARE else one
            for one in jsonl.read(file)
        ]
        jsonl.write(out / file.name, made)
        shutil.copy(f"{file}.recipe.json", out)
        clean = sum(bool(one.turns) and not one.turns[0].generated for one in made)
        print(f"{out / file.name}: {clean} of {len(made)} begin with steps that are not learnt")


def clean_before(trajectory: Trajectory, step: int, tokenizer: HubTokenizer) -> Trajectory:
    """Take out the failed calls before a step; mask the turns there.

    step: from 0. Returns the trajectory as it is where it does not reach the step.
    """
    done, turns = 0, list[Turn]()
    for turn in trajectory.turns:
        if done >= step:
            turns.append(turn)
        elif not turn.failures:
            turns.append(replace(turn, segments=tuple(unlearnt(s, tokenizer) for s in turn.segments)))
            done += 1
    return replace(trajectory, turns=tuple(turns)) if done == step and len(turns) > step else trajectory


def unlearnt(segment: Segment, tokenizer: HubTokenizer) -> Segment:
    """Return a segment as given text, without `AGAIN`."""
    if segment.kind != "sampled":
        return segment
    text = segment.text.removeprefix(AGAIN)
    return Segment("scaffold", text, tuple(tokenizer.encode(text, special=True)))


if __name__ == "__main__":
    main()
