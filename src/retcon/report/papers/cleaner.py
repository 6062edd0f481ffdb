"""CLEANER (arXiv 2601.15141). Its abstract could be read, and the released code; its tables could not, so that claims
are the abstract's, or said to be known from accounts of the paper."""

from __future__ import annotations

from retcon.report.papers.counting import cpu_of_a_rollout, deep_share, repaired_by, tokens_of_a_rollout
from retcon.report.papers.types import Claim, Extra, Paper, Study, Variant

ABSTRACT, ACCOUNTS = "abstract", "by accounts of the paper"
CODE = "the released code"
METHOD = "method"
GAMMAS = ("0.0", "0.25", "0.75", "1.0")
ATTEMPTS = ("1", "2", "5")
MOST = 5
"""The largest K, whose lookaheads tell what a smaller one would have repaired."""
BY_GAMMA = tuple(f"gamma-{gamma}" for gamma in GAMMAS)
BY_ATTEMPTS = tuple(f"attempts-{attempts}" for attempts in ATTEMPTS)
ACCURACY = ("pass1_t1", "pass8_t1", "pass1")
CURVE = ("held_out", "first_tries")

COST = (
    Extra("cpu_of_a_rollout", "CPU ms a rollout", 1, -1, cpu_of_a_rollout),
    Extra("tokens_of_a_rollout", "tokens sampled a rollout", 1, -1, tokens_of_a_rollout),
)
DEEP = Extra("deep_share", "deep, of all repairs", 2, 0, deep_share, most=1)

CLEANER = Paper(
    name="cleaner",
    title="CLEANER: Self-Purified Trajectories Boost Agentic Reinforcement Learning",
    arxiv="2601.15141",
    recipes={"baseline": "mini/dapo-baseline", METHOD: "mini/cleaner"},
    variants=(
        Variant("baseline", "baseline"),
        Variant("cleaner", METHOD),
        Variant("roc", "baseline", ("select.kind=roc", "select.oversample=2.0")),
        *(Variant(name, METHOD, (f"repair.gamma={gamma}",)) for name, gamma in zip(BY_GAMMA, GAMMAS, strict=True)),
        *(
            Variant(name, METHOD, (f"repair.attempts={attempts}",))
            for name, attempts in zip(BY_ATTEMPTS, ATTEMPTS, strict=True)
        ),
        Variant("half", METHOD, ("repair.probability=0.5",)),
        Variant("recovery", "baseline", switches_to=METHOD),
        Variant("dpo", METHOD, ("rl.dpo_beta=15.0", "rl.dpo_limit=0.1")),
    ),
    studies=(
        Study(
            "main",
            "Main results: accuracy",
            ("cleaner", "roc"),
            (*ACCURACY, "tokens_t1"),
            (
                Claim("AIME24/25, over the baseline", "+6 %, on average", ABSTRACT),
                Claim("GPQA, over the baseline", "+3 %, on average", ABSTRACT),
                Claim("LiveCodeBench, over the baseline", "+5 %, on average", ABSTRACT),
                Claim("roc: oversampling and filtering", "“prohibitive computational costs”", ABSTRACT),
            ),
            curves=CURVE,
        ),
        Study(
            "steps",
            "Steps to what the baseline reaches",
            ("cleaner", "roc"),
            ("steps_to_first", "reached_first", "curve_area", "pass1_equal_tokens", "steps"),
            (Claim("steps to match the state of the art", "one third", ABSTRACT),),
            curves=("held_out_by_tokens",),
        ),
        Study(
            "errors",
            "Errors that are left when nothing is repaired",
            ("cleaner", "roc"),
            ("first_try_failures_t1", "failed_calls_t1", "failed_calls"),
            (Claim("failed calls with SAAR off", "fewer than the baseline's", ACCOUNTS),),
            curves=("held_out_first_tries", "failed_calls_raw"),
        ),
        Study(
            "switch",
            "Purification on and off in evaluation (table 4)",
            ("cleaner",),
            ("pass1_t1", "pass1_t1_repaired", "failed_calls_t1", "failed_calls_t1_repaired"),
            (),
        ),
        Study(
            "latency",
            "What purification costs",
            ("cleaner", "roc"),
            ("cpu_s", "sampled_tokens"),
            (Claim("time of a rollout, more than the baseline's", "at most 9 %", ACCOUNTS),),
            COST,
            note="The paper measures time on GPUs; here it is CPU time of everything, tool calls and updates included. "
            "Tokens are those of lookaheads, too.",
        ),
        Study(
            "gamma",
            "γ: how alike a fix must be to keep the reasoning",
            ("cleaner", *BY_GAMMA),
            (*ACCURACY, "failed_calls_t1"),
            (Claim("γ of the main results", ".5", CODE),),
            (DEEP,),
            note="γ = 0 keeps all reasoning, γ = 1 replaces nearly all; `cleaner` has .5. A deep repair replaces the "
            "reasoning, too.",
        ),
        Study(
            "attempts",
            "K: attempts after a failure, and what each one recovers",
            ("cleaner", *BY_ATTEMPTS),
            (*ACCURACY, "failed_calls_t1"),
            (Claim("K of the main results", "3", CODE),),
            (
                *COST,
                *(
                    Extra(f"repaired_by_{n}", f"repaired by attempt {n}", 2, 1, repaired_by(n), most=1)
                    for n in range(1, MOST + 1)
                ),
            ),
            note="`cleaner` has K = 3. CPU time is that of everything, tokens are those of lookaheads, too. The last "
            "rows: of the turns that fail while an evaluation repairs, with the arm's own K.",
        ),
        Study(
            "mixing",
            "How many rollouts are purified",
            ("cleaner", "half"),
            (*ACCURACY, "failed_calls_t1", "curve_area"),
            (Claim("p of the 4B model; of the 7B model", "1; .7", CODE),),
            note="`cleaner` purifies every rollout, `half` every other one.",
        ),
        Study(
            "recovery",
            "Recovery: purification switched on halfway",
            ("cleaner", "recovery"),
            (*ACCURACY, "failed_calls_t1", "first_try_failures_t1"),
            (Claim("a run that has learnt with its errors, once SAAR is on", "recovers", ACCOUNTS),),
            curves=("held_out", "held_out_first_tries"),
        ),
        Study(
            "dpo",
            "Masked online DPO on repaired calls (appendix B)",
            ("cleaner", "dpo"),
            (*ACCURACY, "failed_calls_t1"),
            (
                Claim("over purification alone", "no gain", ACCOUNTS),
                Claim("β; limit of an adjustment", "15; .1", CODE),
            ),
        ),
    ),
    elsewhere=(
        "AIME24/25, GPQA and LiveCodeBench: `--recipe baseline=dapo-baseline --recipe method=cleaner-4b`, on GPUs",
        "what the lookahead is shown: `benchmarks/lookahead.py` (docs/purify/saar.md)",
    ),
)
