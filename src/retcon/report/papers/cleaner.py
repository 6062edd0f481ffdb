"""CLEANER (arXiv 2601.15141): tables 1 to 6, figures, appendices, and their arms."""

from __future__ import annotations

from retcon.report.comparison import PLAIN, REPAIRED
from retcon.report.papers import types as counting
from retcon.report.papers.types import SPIKES, Claim, Extra, Ours, Paper, Study, Variant, draw_spikes, table

METHOD, SECOND = "method", "second"
MOST = 5
"""The largest K, whose lookaheads show what a smaller one would have repaired."""
GAMMAS = {f"gamma-{gamma}": gamma for gamma in ("0.0", "0.25", "0.75", "1.0")}
ATTEMPTS = {f"attempts-{attempts}": attempts for attempts in ("1", "2", "5")}
ACCURACY = ("pass1_t1", "pass8_t1", "pass1", "pass16")
CALLS = (*ACCURACY, "failed_calls_t1")
CODE, TEXT, FIGURE_4 = "the released code", "section 5.3", "section 5.2, figure 4"
NUMBERS, ONE_SET = "problems of arithmetic with numbers", "one set of problems here, beside AIME24"
NO_SCIENCE, NO_CODE = "no science problems here", "no code problems"
UNTAUGHT = "the cold start teaches no answer without a call"
HALF = "half of the miniature's learning rate, as the paper's is half"
OTHERS = "another work's model, not trained here"
DEEPER = "1.07 against .68 M parameters, from a cold start of its own"
SMALL = "a small model takes more"

AIME24, AIME25 = ("AIME24 pass@1/16", "pass1 pass16", NUMBERS), ("AIME25 pass@1/16", "", ONE_SET)
REST = ("GPQA", "", NO_SCIENCE), ("LiveCodeBench-v6", "", NO_CODE)
TABLE_1 = table("table 1", (
    ("AIME24", "pass1", NUMBERS), ("AIME25", "", ONE_SET), *REST, ("LiveCodeBench whole", "", NO_CODE),
    ("RL steps", "steps", "prompts of a step: see settings"),
),
    ("Qwen2.5-7B-Instruct", "16.7 10.0 31.3 15.2 - -", "", OTHERS),
    ("Qwen3-4B-Instruct-2507", "63.3 47.4 52.0 35.1 - -", "", OTHERS),
    ("Qwen2.5-72B-Instruct", "18.9 15.0 49.0 - - -", "", OTHERS),
    ("DeepSeek-V3", "39.2 28.8 59.1 16.1 49.6 -", "", OTHERS),
    ("DeepSeek-R1-Distill-32B", "70.0 46.7 46.7 - - -", "", OTHERS),
    ("DeepSeek-R1-Zero (671B)", "71.0 53.5 53.5 - - -", "", OTHERS),
    ("ToRL-7B", "43.3 30.0 - - - 550", "", OTHERS),
    ("ReTool-32B", "72.5 54.3 - - - 1200", "", OTHERS),
    ("Tool-Star-3B", "20.0 16.7 - - - 120", "", OTHERS),
    ("ARPO-7B", "30.0 30.0 53.0 12.1 15.8 157", "", OTHERS),
    ("AEPO-7B", "33.0 30.0 55.6 14.3 17.8 157", "", OTHERS),
    ("rStar2-Agent-14B", "80.6 69.8 60.9 - - 500", "", OTHERS),
    ("DemyAgent-4B", "72.6 70.0 58.5 26.8 51.7 750", "", OTHERS),
    ("DAPO-baseline", "66.7 59.4 56.9 26.6 49.5 250", "baseline", ""),
    ("CLEANER-4B", "72.7 67.1 60.2 26.8 54.9 250", "cleaner", ""),
)  # fmt: skip
TABLE_2 = table("table 2, Qwen3-4B-Instruct", (AIME24, AIME25, *REST),
    ("RL w/o Tools", "64.0/78.8 53.3/77.0 52.2 19.8", "no-tools", UNTAUGHT),
    ("+ Tools", "66.7/84.4 59.4/84.2 56.9 26.6", "baseline", ""),
    ("+ SAAR", "72.7/87.6 67.1/84.1 60.2 26.8", "cleaner", ""),
)  # fmt: skip
TABLE_2_SECOND = table("table 2, Qwen2.5-7B-Instruct", (AIME24, AIME25, *REST),
    ("RL w/o Tool", "15.4/30.5 14.4/24.4 32.3 1.1", "second-no-tools", f"{DEEPER}; {UNTAUGHT}"),
    ("+ Tools", "40.2/59.1 27.3/46.3 35.9 13.0", "second-baseline", DEEPER),
    ("+ SAAR", "44.6/64.3 31.0/54.7 40.0 13.1", "second-cleaner", DEEPER),
)  # fmt: skip
TABLE_3 = table("table 3", (AIME24, AIME25),
    ("RL w/ Tools (1e-6)", "66.9/85.1 63.3/83.9", "baseline-slow", HALF),
    ("CLEANER-4B (1e-6)", "70.8/85.4 64.2/86.4", "cleaner-slow", HALF),
    ("CLEANER-4B (2e-6)", "72.7/87.6 67.1/84.1", "cleaner", ""),
)  # fmt: skip
TABLE_4 = (
    claim
    for label, cells, on in (
        ("CLEANER-4B", "72.7/87.6 67.1/84.1 60.2 26.8 115", "_t1_repaired"),
        ("CLEANER-4B w/o SAAR", "72.1/86.3 64.6/84.3 59.8 26.6 106", "_t1"),
    )
    for claim in table("table 4", (
        (AIME24[0], f"pass1{on} pass16{on}", "top-p 1"), AIME25, *REST,
        ("minutes", f"minutes{on}", "CPU time of one evaluation, top-p 1"),
    ), (label, cells, "cleaner", ""))
)  # fmt: skip

COST = (
    Extra("cpu_of_a_rollout", "CPU ms a rollout", 1, -1, counting.cpu_of_a_rollout),
    Extra("tokens_of_a_rollout", "tokens sampled a rollout", 1, -1, counting.tokens_of_a_rollout),
)
MINUTES = (
    Extra("minutes_t1", "CPU minutes, purification off", 2, 0, counting.evaluation_minutes(PLAIN)),
    Extra("minutes_t1_repaired", "CPU minutes, purification on", 2, 0, counting.evaluation_minutes(REPAIRED)),
    Extra("wall_minutes_t1", "wall minutes, off", 2, 0, counting.evaluation_minutes(PLAIN, wall=True)),
    Extra("wall_minutes_t1_repaired", "wall minutes, on", 2, 0, counting.evaluation_minutes(REPAIRED, wall=True)),
    Extra("slowdown", "% more CPU time with purification", 1, -1, counting.slowdown, least=-100),
)

STUDIES = (
    Study("main", "Main results: accuracy (table 1)", ("cleaner", "roc"), (*ACCURACY, "tokens_t1", "steps"), (
        *TABLE_1,
        Claim("AIME24/25 pass@1 over the baseline", "+6", FIGURE_4, Ours("cleaner", "pass1", "baseline"), NUMBERS),
        Claim("AIME24/25 pass@16", "+8", FIGURE_4, Ours("cleaner", "pass16", "baseline"), NUMBERS),
        Claim("AIME25 pass@1", "+8.1", "figure 1", None, ONE_SET),
        Claim("GPQA; LiveCodeBench", "+3; +5", "abstract", None, f"{NO_SCIENCE}; {NO_CODE}"),
    ), curves=("held_out", "first_tries")),
    Study("tools", "Without tools, with tools, with SAAR (table 2)", ("no-tools", "cleaner"), CALLS, (
        *TABLE_2,
        Claim("tools over none, mean accuracy", "over 5", TEXT, Ours("baseline", "pass1", "no-tools"), UNTAUGHT),
    ), curves=("held_out",),
        note="`no-tools` begins at the start that all share and has no interpreter: that start answers by way of calls "
        "alone, and each call gets the answer that there is no such tool."),
    Study("size", "A second size (table 2)", ("second-no-tools", "second-cleaner"), (*ACCURACY, "failed_calls_t1"), (
        *TABLE_2_SECOND,
        Claim("tools over none, mean", "20", TEXT, Ours("second-baseline", "pass1", "second-no-tools"), UNTAUGHT),
        Claim("SAAR over tools, mean", "4", TEXT, Ours("second-cleaner", "pass1", "second-baseline"), NUMBERS),
    ), curves=("held_out",), first="second-baseline",
        note="The packaged model with each layer twice, which begins as the packaged one and has a cold start of its "
        "own. As the paper's 7B: half of the smaller one's learning rate, SAAR on seven rollouts in ten."),
    Study("rate", "Learning rates (table 3)", ("baseline-slow", "cleaner-slow", "cleaner"), CALLS, (*TABLE_3,),
        curves=("held_out",)),
    Study("steps", "Steps to what the baseline reaches", ("cleaner", "roc"),
        ("steps_to_first", "reached_first", "curve_area", "pass1_equal_tokens", "steps"), (
        Claim("steps of DemyAgent-4B; CLEANER-4B", "750; 250", "table 1", Ours("cleaner", "steps steps_to_first"),
              "steps of the baseline; of SAAR, to where that ends"),
    ), curves=("held_out_by_tokens",)),
    Study("errors", "Errors that are left when nothing is repaired (figure 4)", ("cleaner", "roc"),
        ("first_try_failures_t1", "failed_calls_t1", "failed_calls"), (
        Claim("failed calls of a rollout, baseline at step 200", "0.6", TEXT, Ours("baseline", "failed_calls_t1"),
              "evaluated at the end"),
        Claim("failed calls, SAAR", "fewer; no number", FIGURE_4, Ours("cleaner", "failed_calls_t1", "baseline"),
              "less the baseline's, evaluated with SAAR off"),
    ), curves=("held_out_first_tries", "failed_calls_raw")),
    Study("spikes", "Bursts of failed calls and accuracy (figure 2)", ("cleaner",), ("failed_calls_t1",), (
        Claim("accuracy where failed calls of a rollout rise", "falls; no number", "figure 2",
              Ours("baseline", "spikes_held_out spikes_training"), "r of changes: held out; in training"),
    ), SPIKES, curves=("failed_calls_raw",), draw=draw_spikes,
        note="r is Pearson's between changes of both from one point to the next; of one seed with Fisher's interval, "
        "of several with Student's t over seeds. In training both are of the same rollouts."),
    Study("switch", "Purification on and off in evaluation (table 4)", ("cleaner",),
        tuple(name + on for name in ("pass1_t1", "pass16_t1", "failed_calls_t1") for on in ("", "_repaired")), (
        *TABLE_4,
        Claim("mean latency with SAAR, % more", "8.8", TEXT, Ours("cleaner", "slowdown"),
              "CPU time; table 4's minutes are 8.5 % more"),
    ), MINUTES, repaired=True,
        note="Both evaluations are of one model on the same problems; the paper's minutes are on GPUs."),
    Study("latency", "What purification costs in training", ("cleaner", "roc"), ("cpu_s", "sampled_tokens"), (
        Claim("training of the 4B; of the 7B", "4 days; 2 days", "appendix A", Ours("cleaner", "cpu_s"),
              "CPU seconds; 4 H100 or H200 there"),
    ), COST, note="CPU time of everything, tool calls and updates included. Tokens are those of lookaheads, too."),
    Study("gamma", "γ: how alike a fix must be to keep the reasoning", ("cleaner", *GAMMAS), CALLS, (
        Claim("γ of the main results", "0.5", "table 5", Ours("cleaner", "repair.gamma")),
        Claim("γ between .5 and 1", "advised; no number", "appendix A", Ours("gamma-1.0", "pass1", "cleaner"),
              "γ = 1 less γ = .5"),
    ), (Extra("deep_share", "deep, of all repairs", 2, 0, counting.deep_share, most=1),),
        note="γ = 0 keeps all reasoning, γ = 1 replaces nearly all; `cleaner` has .5. A deep repair replaces the "
        "reasoning, too."),
    Study("attempts", "K: attempts after a failure, and what each one recovers", ("cleaner", *ATTEMPTS), CALLS, (
        Claim("K of the main results", "3", "table 5", Ours("cleaner", "repair.attempts")),
        Claim("repaired by attempt 2; 3; 5", "less below 3, little more above; no number", "appendix A",
              Ours("attempts-5", "repaired_by_2 repaired_by_3 repaired_by_5"), "share of turns that fail"),
    ), (*COST, *(
        Extra(f"repaired_by_{n}", f"repaired by attempt {n}", 2, 1, counting.repaired_by(n), most=1)
        for n in range(1, MOST + 1)
    )), repaired=True,
        note="`cleaner` has K = 3. CPU time is that of everything, tokens are those of lookaheads, too. The last "
        "rows: of the turns that fail while an evaluation repairs, with the arm's own K."),
    Study("mixing", "How many rollouts are purified", ("cleaner", "p-0.7", "half"), (*CALLS, "curve_area"), (
        Claim("p of the 4B model", "1", CODE, Ours("cleaner", "repair.probability")),
        Claim("p of the 7B model", "0.7", "section 4.3", Ours("p-0.7", "repair.probability")),
        Claim("accuracy by p", "no number", "section 4.3", Ours("p-0.7", "pass1", "cleaner"), "p = .7 less p = 1"),
    ), note="`cleaner` purifies every rollout, `p-0.7` seven in ten, `half` every other one."),
    Study("recovery", "Recovery: purification switched on halfway (figure 5)", ("cleaner", "recovery"),
        (*CALLS, "first_try_failures_t1"), (
        Claim("AIME24, once SAAR is on", "+5.2", TEXT, Ours("recovery", "pass1", "baseline"),
              "less the baseline's end; on at half of the steps, there from step 200"),
        Claim("AIME25, once SAAR is on", "+1.0", TEXT, None, ONE_SET),
        Claim("less SAAR from the first step", "lower; no number", TEXT,
              Ours("recovery", "pass1 pass16 failed_calls_t1", "cleaner"), "pass@1; pass@16; failed calls"),
    ), curves=("held_out", "held_out_first_tries")),
    Study("dpo", "Masked online DPO on repaired calls (appendix B)", ("cleaner", "dpo"), CALLS, (
        Claim("over purification alone", "no gain, later collapse; no number", "appendix B",
              Ours("dpo", "pass1", "cleaner"), NUMBERS),
        Claim("β; limit of an adjustment", "15; 0.1", CODE, Ours("dpo", "rl.dpo_beta rl.dpo_limit")),
    )),
)  # fmt: skip

CLEANER = Paper(
    name="cleaner",
    title="CLEANER: Self-Purified Trajectories Boost Agentic Reinforcement Learning",
    arxiv="2601.15141",
    recipes={"baseline": "mini/dapo-baseline", METHOD: "mini/cleaner", SECOND: "mini/cleaner/deep"},
    variants=(
        Variant("baseline", "baseline"),
        Variant("cleaner", METHOD),
        Variant("no-tools", "baseline", ("rollout.tools=[]",)),
        Variant("roc", "baseline", ("select.kind=roc", "select.oversample=2.0")),
        *(Variant(name, METHOD, (f"repair.gamma={gamma}",)) for name, gamma in GAMMAS.items()),
        *(Variant(name, METHOD, (f"repair.attempts={attempts}",)) for name, attempts in ATTEMPTS.items()),
        Variant("p-0.7", METHOD, ("repair.probability=0.7",)),
        Variant("half", METHOD, ("repair.probability=0.5",)),
        Variant("baseline-slow", "baseline", rate=0.5),
        Variant("cleaner-slow", METHOD, rate=0.5),
        Variant("recovery", "baseline", switches_to=METHOD),
        Variant("dpo", METHOD, ("rl.dpo_beta=15.0", "rl.dpo_limit=0.1")),
        Variant("second-baseline", SECOND, ("repair.kind=none",), start=SECOND),
        Variant("second-cleaner", SECOND, start=SECOND),
        Variant("second-no-tools", SECOND, ("repair.kind=none", "rollout.tools=[]"), start=SECOND),
    ),
    studies=STUDIES,
    settings=(
        Claim("learning rate, 4B", "2e-6", "table 5", Ours("cleaner", "rl.lr"), SMALL),
        Claim("learning rate, 7B", "1e-6", "table 5", Ours("second-cleaner", "rl.lr"), SMALL),
        Claim("tokens of a prompt", "2,560", "table 5", None, "no limit; prompts have some 40"),
        Claim("tokens of a response", "20,480", "table 5", Ours("cleaner", "rollout.max_tokens"), "prompt included"),
        Claim("warm-up, steps", "20", "table 5", Ours("cleaner", "rl.warmup_steps")),
        Claim("PPO clip, below; above", "0.20; 0.28", "table 5", Ours("cleaner", "rl.clip_low rl.clip_high")),
        Claim("K; γ", "3; 0.5", "table 5", Ours("cleaner", "repair.attempts repair.gamma")),
        Claim("reward", "-1 or 1, of the outcome", "table 5", None, "the same, and no key"),
        Claim("evaluation: temperature", "1.0", "table 6", None, "1 here, too, and no key"),
        Claim("evaluation: top-p", "0.6", "table 6", Ours("cleaner", "evaluate.top_p"), "and top-p 1"),
        Claim("evaluation: top-k", "-1", "table 6", Ours("cleaner", "rollout.top_k"), "0 is off here"),
        Claim("prompts; rollouts of each", "128; 16", "section 5.1", Ours("cleaner", "rl.prompts rl.group")),
    ),
    elsewhere=(
        "AIME24/25, GPQA and LiveCodeBench: `--recipe baseline=dapo-baseline --recipe method=cleaner-4b "
        "--recipe second=cleaner-7b`, on GPUs",
        "the other models of table 1, which are other works'",
        "log-probs recomputed over a prefix cache (section 4.3): `benchmarks/saar_cost.py` (docs/purify/saar.md)",
        "what the lookahead is shown: `benchmarks/lookahead.py` (docs/purify/saar.md)",
    ),
    quick=(
        "rl.steps=6", "rl.prompts=6", "evaluate.problems=8", "evaluate.every=1", "sft.demonstrations=1000",
        "sft.steps=200",
    ),
)  # fmt: skip
