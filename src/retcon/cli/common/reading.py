"""Which sections of a recipe each command reads; overrides of others are refused (`load_recipe(…, reads=READS[…])`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.config.load import ALL

_ROLLOUTS = ("run", "model", "compute", "engine", "task", "rollout", "sandbox")

READS: Mapping[str, Sequence[str]] = {
    "demos": (*_ROLLOUTS, "demos", "sft"),
    "sft": (*_ROLLOUTS, "lora", "demos", "sft", "evaluate.seed", "track"),
    "dpo": ("run", "model", "compute", "lora", "task", "rollout", "sandbox", "dpo", "track"),
    "train": tuple(name for name in ALL if name not in ("sft", "dpo", "demos")),
    "difficulty": (*_ROLLOUTS, "select", "stages"),
    "audit": (*_ROLLOUTS, "evaluate.seed", "repair", "rl"),
    "conversing": (*_ROLLOUTS, "repair"),
    "compare": tuple(name for name in ALL if name != "dpo"),
}
"""A section that matters to a part of a command's work alone, such as the making of demonstrations, is among them, as
are those that say which tools the model is shown. section.key: of that section this key alone. conversing: `ask` and
`serve-agent`; compare: also `reproduce`. `eval` takes those of the training that it measures."""
