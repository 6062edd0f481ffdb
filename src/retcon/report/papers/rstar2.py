"""rStar2-Agent (arXiv 2508.20722)."""

from __future__ import annotations

from retcon.report.papers.types import (
    Claim,
    Extra,
    Ours,
    Paper,
    Study,
    Variant,
    cut_off,
    failing_calls_of_right,
    table,
    tokens_of_a_rollout,
)

METHOD = "method"
SECTION_52, SECTION_53 = "section 5.2, figure 8", "section 5.3, figure 9"
NUMBERS, ONE_SET = "problems of arithmetic with numbers", "one set of problems here, beside AIME24"

TABLE_3 = table(
    "table 3",
    (("AIME24", "pass1", NUMBERS), *((head, "", ONE_SET) for head in ("AIME25", "HMMT25", "MATH-500"))),
    ("rStar2-Agent-14B", "80.6 69.8 52.7 97.8", "roc", ""),
)
TABLE_4 = table(
    "table 4, tokens of an answer",
    (("AIME24", "tokens_t1", NUMBERS), ("AIME25", "", ONE_SET)),
    ("rStar2-Agent-14B", "9,340 10,943", "roc", ""),
    ("Qwen3-14B", "14,748 17,522", "", "another work's model, not trained here"),
)

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
            ("pass1_t1", "pass8_t1", "pass1", "pass16", "curve_area", "steps_to_first"),
            (
                *TABLE_3,
                Claim("AIME24/25", "higher; no number", SECTION_53, Ours("roc", "pass1", "grpo"), "at the end"),
                Claim("32B after stages 1 and 2, AIME24; AIME25", "69.4; 57.3", "table 6", None, "one size here"),
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
                Claim("tool errors of positively rewarded rollouts", "decrease; no number", "section 2.2.3, figure 4",
                      Ours("roc", "failing_of_right", "grpo"), "share of calls, less GRPO's"),
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
                *TABLE_4,
                Claim("length of a training's answers", "less than GRPO with tools; no number", SECTION_53,
                      Ours("roc", "tokens_of_a_rollout", "grpo"), "tokens of a rollout, less GRPO's"),
            ),
            (Extra("tokens_of_a_rollout", "tokens sampled a rollout", 1, -1, tokens_of_a_rollout),),
            curves=("sampled_tokens",),
            note="RoC makes twice the rollouts that it trains on, 32 a prompt in the paper.",
        ),
        Study(
            "stages",
            "Three stages: short, longer, harder (figure 8, table 2)",
            ("roc", "stages"),
            ("pass1_t1", "pass1", "tokens_t1", "sampled_tokens", "steps", "cpu_s"),
            (
                Claim("AIME24 after stage 3", "80.6", SECTION_52, Ours("stages", "pass1"),
                      "problems of the first two stages"),
                Claim("AIME24 before; after stages 1, 2", "3.3; 72.1, 77.0", SECTION_52, None, "evaluated at the end"),
                Claim("AIME25 before; after stages 1, 2, 3", "0; 64.2, 64.8, 69.8", SECTION_52, None, ONE_SET),
                Claim("steps of the stages", "300, 85, 125 (510 in all)", "section 4.3", Ours("stages", "steps"),
                      "in all"),
                Claim("most tokens of an answer", "8K, 12K, 12K", "table 2", Ours("stages", "rollout.max_tokens"),
                      "prompt included, of stage 2; 240 and 480 in stages 1 and 3"),
            ),
            curves=("held_out",),
            note="Stage 3 trains on longer chains, which the evaluation does not have.",
        ),
        Study(
            "overlong",
            "Overlong filtering (section 4.3.1)",
            ("roc", "overlong"),
            ("pass1_t1", "pass1", "tokens_t1"),
            (
                Claim("masking what was cut off", "no benefit; no number", "section 4.3.1",
                      Ours("overlong", "pass1", "roc"), NUMBERS),
                Claim("cut off with that masking", "more; no number", "section 4.3.1",
                      Ours("overlong", "cut_off", "roc"), "share of rollouts in training"),
            ),
            (Extra("cut_off", "cut off in training", 3, -1, cut_off, most=1),),
        ),
    ),
    settings=(),
    elsewhere=(
        "SFT without reasoning (table 1): MATH-500 57.4, AIME24 3.3, BFCL v3 63.1, IFEval 83.7 in the paper; "
        "`retcon sft rstar2-14b/sft_mini`",
        "the code environment (figure 6): 45,000 calls a step at .3 s a call in the paper; `benchmarks/service.py` "
        "(docs/sandbox/service.md)",
        "load-balanced rollouts (figure 7): `benchmarks/scheduling.py` (docs/models/scale.md)",
        "GPQA, BFCL, IFEval and Arena-Hard (table 5): 60.9, 60.8, 83.4 and 86.6 in the paper; not in miniature",
        "the compute (abstract): 510 steps in a week on 64 MI300X in the paper",
    ),
    quick=(
        "rl.steps=6", "rl.prompts=6", "stages.1.steps=2", "stages.2.steps=2", "evaluate.problems=8", "evaluate.every=1",
        "sft.demonstrations=1000", "sft.steps=200",
    ),
)  # fmt: skip
