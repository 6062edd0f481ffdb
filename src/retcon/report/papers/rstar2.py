"""rStar2-Agent (arXiv 2508.20722)."""

from __future__ import annotations

from retcon.report.papers.counting import cut_off, failing_calls_of_right, tokens_of_a_rollout
from retcon.report.papers.types import Claim, Extra, Paper, Study, Variant

METHOD = "method"
SECTION_52, SECTION_53 = "section 5.2, figure 8", "section 5.3, figure 9"

RSTAR2 = Paper(
    name="rstar2",
    title="rStar2-Agent: Agentic Reasoning Technical Report",
    arxiv="2508.20722",
    recipes={"baseline": "mini/dapo-baseline", METHOD: "mini/rstar2", "stages": "mini/stages/rstar2"},
    variants=(
        Variant("grpo", "baseline"),
        Variant("roc", METHOD),
        Variant("stages", "stages"),
        Variant("overlong", METHOD, ("rl.truncated=mask", "rl.masked_in_baseline=true")),
    ),
    studies=(
        Study(
            "main",
            "GRPO-RoC against GRPO with tools (figure 9)",
            ("roc",),
            ("pass1_t1", "pass8_t1", "pass1", "curve_area", "steps_to_first"),
            (
                Claim("AIME24 and AIME25 throughout training", "higher than GRPO with tools", SECTION_53),
                Claim("14B, AIME24; AIME25; HMMT25", "80.6; 69.8; 52.7", "table 3"),
                Claim("14B, MATH-500", "97.8", "table 3"),
                Claim("32B after stages 1 and 2, AIME24; AIME25", "69.4; 57.3", "table 6"),
            ),
            curves=("held_out",),
            note="The paper's third curve, DAPO without tools, is other authors' model.",
        ),
        Study(
            "errors",
            "Tool errors in rollouts that are right (figure 4)",
            ("roc",),
            ("first_try_failures_t1", "failed_calls_t1"),
            (
                Claim(
                    "tool errors of positively rewarded rollouts", "decrease significantly", "section 2.2.3, figure 4"
                ),
            ),
            (Extra("failing_of_right", "failing in right rollouts", 3, -1, failing_calls_of_right, most=1),),
            curves=("failed_calls_raw",),
        ),
        Study(
            "length",
            "Shorter answers (figure 9c, table 4)",
            ("roc",),
            ("tokens_t1", "sampled_tokens", "rollouts", "cpu_s", "pass1_equal_tokens"),
            (
                Claim("length of a training's answers", "substantially less than GRPO with tools", SECTION_53),
                Claim("tokens of an answer, AIME24; AIME25", "9,340; 10,943", "table 4"),
                Claim("of Qwen3-14B", "14,748; 17,522", "table 4"),
            ),
            (Extra("tokens_of_a_rollout", "tokens sampled a rollout", 1, -1, tokens_of_a_rollout),),
            curves=("sampled_tokens",),
            note="RoC makes twice the rollouts that it trains on, 32 a prompt in the paper.",
        ),
        Study(
            "stages",
            "Three stages: short, longer, harder (figure 8, table 2)",
            ("roc", "stages"),
            ("pass1_t1", "pass1", "tokens_t1", "sampled_tokens", "cpu_s"),
            (
                Claim("AIME24 before; after stages 1, 2, 3", "3.3; 72.1, 77.0, 80.6", SECTION_52),
                Claim("AIME25 before; after stages 1, 2, 3", "0; 64.2, 64.8, 69.8", SECTION_52),
                Claim("steps of the stages", "300, 85, 125", "section 4.3"),
                Claim("most tokens of an answer", "8K, 12K, 12K", "table 2"),
            ),
            curves=("held_out",),
            note="Stage 3 trains on longer chains, which the evaluation does not have.",
        ),
        Study(
            "overlong",
            "Overlong filtering (section 4.3.1)",
            ("roc", "overlong"),
            ("pass1_t1", "pass1", "tokens_t1"),
            (Claim("masking what was cut off", "no benefit, and more is cut off", "section 4.3.1"),),
            (Extra("cut_off", "cut off in training", 3, -1, cut_off, most=1),),
        ),
    ),
    elsewhere=(
        "SFT without reasoning (table 1): MATH-500 57.4, AIME24 3.3, BFCL v3 63.1, IFEval 83.7 in the paper; "
        "`retcon sft rstar2-14b/sft_mini`",
        "the code environment (figure 6): 45,000 calls a step at .3 s a call in the paper; `benchmarks/service.py` "
        "(docs/sandbox/service.md)",
        "load-balanced rollouts (figure 7): `benchmarks/scheduling.py` (docs/models/scale.md)",
        "GPQA, BFCL, IFEval and Arena-Hard (table 5): 60.9, 60.8, 83.4 and 86.6 in the paper; not in miniature",
    ),
)
