"""Every recipe of recipes/mini runs, and what it is named after is seen in its metrics or in what is learnt from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from golden.make import RUNS
from retcon.config.load import load_recipe, shipped_recipes
from retcon.config.schema import Recipe
from retcon.core.types import Sample, Trajectory, to_sample
from retcon.purify.splice import accepted_splices
from retcon.runs.metrics import idle_mechanisms
from retcon.store import jsonl
from retcon.train.objective.shaping import has_void_turn, in_failed_turns, is_void
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from retcon.train.update import to_samples
from training import Graded, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
MINI = [name for name in shipped_recipes() if name.startswith("mini/")]
SMALL = ("rl.steps=2", "rl.prompts=2", "rollout.max_turns=4", "sandbox.workers=1", "compute.device=cpu")
ONE = "rl.minibatches=1"
ALL = "repair.probability=1.0"
RIGHT_THEN_WRONG = (1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0) * 2
FLAT = (-1.0,) * 16


@dataclass(frozen=True)
class Made:
    """lines: metrics of each step. groups: the first step's rollouts of each prompt, those that selection left out
    among them. steps: the rollouts of each step that were kept."""

    recipe: Recipe
    lines: list[Mapping[str, Any]]
    groups: list[list[Trajectory]]
    steps: list[list[Trajectory]]

    @property
    def rollouts(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group]

    @property
    def samples(self) -> list[Sample]:
        return to_samples(self.rollouts, [1.0] * len(self.rollouts), self.recipe.rl)

    @property
    def idle(self) -> list[str]:
        """Key and value of the mechanisms that never acted."""
        return [line.split(" never acted in ")[0] for line in idle_mechanisms(self.recipe, self.lines)]

    @property
    def first_loss(self) -> float:
        return float(self.lines[0]["loss"])


Run = Callable[..., Made]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("mini")
    base = make_base(folder / "base", positions=1024)
    return run_sft(small_recipe(base), make_demonstrations(base, folder / "demonstrations.jsonl"), folder / "cold")


@pytest.fixture(scope="module")
def run(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    def run(name: str, *overrides: str, rewards: Sequence[Sequence[float]] = (RIGHT_THEN_WRONG,)) -> Made:
        """rewards: none for the recipe's own tasks."""
        recipe = load_recipe(name, [*SMALL, *overrides])
        out = tmp_path_factory.mktemp("run") / "out"
        lines: list[Mapping[str, Any]] = []
        graded = Graded(rewards=tuple(map(tuple, rewards))) if rewards else None
        run_rl(recipe, start, out, tasks=graded, on_step=lines.append)
        steps = [list(jsonl.read(file)) for file in sorted((out / "trajectories").iterdir())]
        tasks = dict.fromkeys(t.task for t in steps[0])
        return Made(recipe, lines, [[t for t in steps[0] if t.task == task] for task in tasks], steps)

    return run


def lengths(made: Made) -> list[list[int]]:
    """Tokens in the loss mask of each rollout of each group."""
    return [[sum(to_sample(t).mask) for t in group] for group in made.groups]


def mean_over_tokens(advantages: Sequence[Sequence[float]], made: Made) -> float:
    """The loss of a first minibatch, whose ratios are 1, where all tokens weigh the same."""
    tokens = [n for counts in lengths(made) for n in counts]
    weighed = (a * n for a, n in zip((a for row in advantages for a in row), tokens, strict=True))
    return -sum(weighed) / sum(tokens)


def signs(made: Made) -> list[list[float]]:
    return [[float(t.reward or 0) for t in group] for group in made.groups]


def test_grpo(run: Run) -> None:
    made = run("mini/grpo", ONE)
    assert made.first_loss == pytest.approx(0, abs=1e-6), "rollouts weigh the same, and half of them are right"
    assert abs(mean_over_tokens(signs(made), made)) > 1e-3, "by tokens it would not be 0"


def scaled(made: Made) -> list[list[float]]:
    """Rewards of 1 and -1, half and half, over their deviation: √(8 / 7) in a group of 8."""
    return [[r / (8 / 7) ** 0.5 for r in row] for row in signs(made)]


def test_dapo_baseline(run: Run) -> None:
    made = run("mini/dapo-baseline", ONE)
    assert made.first_loss == pytest.approx(mean_over_tokens(scaled(made), made), rel=1e-4)


def test_rloo(run: Run) -> None:
    made = run("mini/rloo", ONE)
    assert made.first_loss == pytest.approx(
        mean_over_tokens([[r * 8 / 7 for r in row] for row in signs(made)], made), rel=1e-4
    )


def test_reinforce_pp(run: Run) -> None:
    made = run("mini/reinforce_pp", ONE, rewards=(RIGHT_THEN_WRONG, FLAT))
    over_all = [[r / (8 / 15) ** 0.5 for r in signs(made)[0]], [0.0] * 8]  # of 16 rollouts, half of which are flat
    # Where all rollouts are equally long, both are 0.
    assert made.first_loss == pytest.approx(mean_over_tokens(over_all, made), rel=1e-4, abs=1e-7)


def test_cleaner_saar_70(run: Run) -> None:
    assert {t.provenance.purified for t in run("mini/cleaner/saar-70").rollouts} == {True, False}


def test_cleaner_deep(run: Run) -> None:
    assert {t.provenance.purified for t in run("mini/cleaner/deep").rollouts} == {True, False}


def test_roc_saar(run: Run) -> None:
    several = ("rl.prompts=6", "rl.steps=3")  # of which some group has something to choose
    made = run("mini/ours/roc-saar", ONE, ALL, *several)
    purified = run("mini/ours/roc-saar", ONE, ALL, *several, "select.failures=purified")
    line = made.lines[0]
    assert (line["rollouts"], line["kept"]) == (96, 48)
    assert line["shallow"] + line["deep"] > 0
    assert [t.id for t in made.rollouts] == [t.id for t in purified.rollouts]
    assert [line["loss"] for line in made.lines] != [line["loss"] for line in purified.lines], "others are learnt from"


def test_simpletir(run: Run) -> None:
    made = run("mini/simpletir", "rollout.max_tokens=40")
    void = [has_void_turn(t) for t in made.rollouts]
    assert 0 < sum(void) < len(void)
    assert [not any(s.mask) for s in made.samples] == void
    line = made.lines[0]
    assert (line["void_masked"], line["void_turns"]) == (
        sum(void),
        sum(is_void(u, t.answer) for t in made.rollouts for u in t.turns),
    )
    assert [t.selection == "masked" for t in made.rollouts] == void
    assert made.idle == []


def test_masked_failures(run: Run) -> None:
    made = run("mini/ours/masked-failures")
    failed = [in_failed_turns(t) for t in made.rollouts]
    assert any(map(any, failed))
    assert made.idle == []
    for before, after, bad in zip(map(to_sample, made.rollouts), made.samples, failed, strict=True):
        assert [int(m and not f) for m, f in zip(before.mask, bad, strict=True)] == list(after.mask)


def test_blame(run: Run) -> None:
    made, without = run("mini/ours/blame"), run("mini/ours/blame", "rl.blame=0")
    assert sampled(made) == sampled(without)
    turned = [
        (after, before)
        for one, other in zip(made.samples, without.samples, strict=True)
        for after, before in zip(one.advantages or (), other.advantages or (), strict=True)
        if after != before
    ]
    assert turned, "a right rollout has a failed call"
    assert all(after == -before / 2 < 0 for after, before in turned)
    assert made.lines[0]["blamed_tokens"] > 0
    assert made.idle == []


def test_echo(run: Run) -> None:
    made, without = run("mini/echo"), run("mini/echo", "rl.echo=0")
    assert sampled(made) == sampled(without)
    line, other = made.lines[0], without.lines[0]
    assert line["echo_tokens"] == sum(sum(one.predicted or ()) for one in made.samples) > 0
    assert line["echo"] > 0
    assert line["loss"] == pytest.approx(other["loss"] + 0.1 * line["echo"], abs=0.02)  # after the first minibatch
    assert made.idle == []


def test_sdpo(run: Run) -> None:
    made = run("mini/sdpo")
    line = made.lines[0]
    assert line["sdpo_tokens"] == sum(sum(h.sample.mask) for one in made.samples for h in one.hindsights) > 0
    assert line["sdpo_gap"] != 0
    assert made.idle == []


def test_rlm(run: Run) -> None:
    """The tiny model writes no programs of rlm: a tool that calls the model itself stands in for it."""
    made = run("mini/rlm", 'rollout.tools=["asking:AskingKind"]', "rl.minibatches=1", "rollout.max_tokens=160")
    line = made.lines[0]
    nodes = [node for root in made.rollouts for node in root.tree if node.training.advantage is not None]
    own = {root.id: root.training.advantage for root in made.rollouts}
    assert line["children_trained"] == len(nodes) - len(own) > 0
    assert all(n.training.advantage == own["/".join(n.id.split("/")[:5])] for n in nodes), "that of their root"
    assert 0 < line["children_loss_share"] < 1
    assert made.idle == []


def test_dual_clip(run: Run) -> None:
    far = ("mini/dual-clip", "rl.lr=5e-2", "rl.steps=3")  # until it clips, both are one run
    both = ((run(*far, f"run.seed={n}"), run(*far, f"run.seed={n}", "rl.dual_clip=0")) for n in range(6))
    on, off = next(p for a, b in both for p in zip(a.lines, b.lines, strict=True) if p[0]["loss"] != p[1]["loss"])
    assert on["dual_clip_tokens"] > 0
    assert "dual_clip_tokens" not in off
    assert on["clip_fraction"] > off["clip_fraction"]
    assert on["loss"] < off["loss"]
    assert run("mini/dual-clip", "rl.lr=1e-6").idle == ["rl.dual_clip=3.0"]


def test_stages_rstar2(run: Run) -> None:
    short = ("rl.steps=3", "stages.1.steps=1", "stages.2.steps=1", "stages.short.rollout.max_tokens=45")
    made = run("mini/stages/rstar2", *short, rewards=())
    assert [line["stage"] for line in made.lines] == [1, 2, 3]
    longest = [max(len(to_sample(t).ids) for t in step) for step in made.steps]
    assert longest[0] <= 45 < longest[1], "the limit grows"
    assert made.lines[2]["prompt_tokens"] > made.lines[1]["prompt_tokens"], "harder problems are longer"
    assert [line["kept"] for line in made.lines] == [16, 16, 16]
    assert len({t.task for step in made.steps for t in step}) == 6, "no prompt comes twice"


def branching(made: Made) -> list[Trajectory]:
    """The rollouts that left another; what they share with it is there once in a group, and no id is told twice."""
    groups = {id(group): {t.id: t for t in group} for group in made.groups}
    found = [(groups[id(group)], t) for group in made.groups for t in group if t.branch is not None]
    for group, t in found:
        assert t.branch is not None
        parent = group[t.branch.parent]
        assert t.turns[: t.branch.turns] == parent.turns[: t.branch.turns]
        shared = sum(len(s.ids or ()) for s in (*t.prompt, *(s for u in t.turns[: t.branch.turns] for s in u.segments)))
        assert shared == t.branch.tokens
    return [t for _, t in found]


def sampled(made: Made) -> list[object]:
    """What of its rollouts does not depend on the clock."""
    return [(t.id, t.branch, *((s.ids, s.logprobs) for s in t.segments)) for t in made.rollouts]


def test_arpo(run: Run) -> None:
    made = run("mini/arpo", "compute.micro_batch_tokens=8192", ONE)
    line, found = made.lines[0], branching(made)
    assert [len(group) for group in made.groups] == [8, 8]
    assert line["branches"] == len(found) > 0
    assert line["branch_entropy"] > 0
    assert line["branch_surprisal"] is None, "the local engine knows the entropies"
    assert line["entropy_after_tools"] is not None
    assert line["branch_shared_tokens"] == sum(t.branch.tokens for t in found if t.branch)
    assert line["branch_shared_calls"] > 0
    assert made.idle == []
    assert line["sampled_tokens"] == sum(t.sampled_tokens for t in made.rollouts)
    assert line["shared"] > 0


def test_rtmc(run: Run) -> None:
    made = run("mini/rtmc", ONE)
    assert made.lines[0]["shared_states"] > 0
    group = made.groups[0]
    samples = to_samples(group, made.recipe.rl.advantages([t.reward or 0.0 for t in group]), made.recipe.rl)
    learnt = ({a for a, m in zip(s.advantages or (), s.mask, strict=True) if m} for s in samples)
    assert any(len(values) > 1 for values in learnt), "turns of one rollout differ"


def test_branpo(run: Run) -> None:
    made = run("mini/branpo", ONE)
    found = branching(made)
    ends = {t.id: t for t in made.rollouts}
    assert made.lines[0]["branches"] == len(found) >= made.lines[0]["contrasts"] > 0
    assert made.idle == []
    for other in found:
        assert other.branch
        assert len(ends[other.branch.parent].turns) - other.branch.turns in (1, 2, 3), "it left near the end"


def test_fission(run: Run) -> None:
    made = run("mini/fission", ONE)
    found = branching(made)
    points = Counter((t.branch.parent, t.branch.turns) for t in found if t.branch)
    assert made.lines[0]["branches"] == len(found) > 0
    assert set(points.values()) == {3}
    assert all(t.turns[t.branch.turns - 1].failures for t in found if t.branch)
    assert made.idle == []
    for sample, rollout in zip(made.samples, made.rollouts, strict=True):
        assert not any(sample.mask[: rollout.branch.tokens if rollout.branch else 0])


def test_arpo_goes_with_a_repair_with_sessions_and_with_weights_that_change_meanwhile(run: Run) -> None:
    with_all = ("sandbox.sessions=true", "repair.kind=saar", "rl.max_staleness=1")
    made = run("mini/arpo", "rl.steps=3", "strategy.probability=1.0", *with_all)
    assert all(len(group) == 8 for group in made.groups)
    assert branching(made)
    assert [line["rollouts"] for line in made.lines] == [16] * 3
    assert all(line["branches"] > 0 and line["infrastructure"] == 0 for line in made.lines)
    assert made.lines[0]["shallow"] + made.lines[0]["deep"] > 0
    assert max(line["staleness_max"] for line in made.lines) == 1


def test_there_is_a_test_of_every_one() -> None:
    """Here, or frozen with metrics and weights of three steps in tests/golden."""
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    names = (name.removeprefix("mini/").removeprefix("ours/") for name in MINI if name not in RUNS)
    assert {name.replace("-", "_").replace("/", "_") for name in names} <= tested


def test_branch(run: Run) -> None:
    made = run("mini/ours/branch", ALL)
    line = made.lines[0]
    assert line["resampled"] > 0, "fresh tries took the place of failures"
    assert line["failures"] < line["raw_failures"]
    assert len(made.samples) > len(made.rollouts), "and are learnt from, beside what they took the place of"


def test_describe(run: Run) -> None:
    made = run("mini/ours/describe")
    line = made.lines[0]
    assert line["described"] > 0
    assert line["failures"] == line["raw_failures"], "a failure stays a failure"
    turns = [turn for t in made.rollouts for turn in t.turns if turn.repair and turn.repair.decision == "described"]
    assert all(o.text.startswith("[python failed: ") for turn in turns for o in turn.observations)
    assert line["spliced_tokens"] == 0
    assert line["mismatch_max"] < 1e-3, "what is learnt has the log-probs that it was sampled with"


def test_adaptive(run: Run) -> None:
    made = run("mini/ours/adaptive")
    assert not any(t.provenance.purified for group in made.groups for t in group[:2])
    assert 0 < made.lines[0]["purified"] < 12, "neither none nor all: a half-failing model"
    armed = [t for t in made.rollouts if t.provenance.purified]
    assert made.lines[0]["purified"] == len(armed)


def test_imitate(run: Run) -> None:
    line = run("mini/ours/imitate", ONE, ALL).lines[0]
    assert line["imitation"] > 0
    assert line["spliced_positive"] > 0


def test_accept(run: Run) -> None:
    made = run("mini/ours/accept", ONE, ALL, "rl.prompts=8", "rl.steps=1")
    weights = [w for t in made.rollouts for w in accepted_splices(t) if w is not None]
    assert set(weights) == {0.0, 1.0}, "some splices are learnt, some are not"
    assert made.lines[0]["spliced_weight"] == pytest.approx(sum(weights) / len(weights))


def test_agree(run: Run) -> None:
    made = run("mini/ours/agree", ONE, ALL)
    repaired = [turn for t in made.rollouts for turn in t.turns if turn.repair is not None]
    fixed = [turn for turn in repaired if turn.repair and turn.repair.decision in ("shallow", "deep")]
    assert fixed
    for turn in fixed:
        outputs = [[o.text for o in one.observations] for one in turn.abandoned[1:] if one.calls and not one.failures]
        assert outputs.count(outputs[-1]) == 2


def test_veto(run: Run) -> None:
    made, without = (run("mini/ours/veto", ONE, ALL, f"rl.mask_negative_spliced={on}") for on in ("true", "false"))
    assert made.lines[0]["spliced_negative"] > 0
    assert made.lines[0]["grad_norm"] != without.lines[0]["grad_norm"]


def test_truncated(run: Run) -> None:
    line = run("mini/ours/truncated", ONE, ALL).lines[0]
    assert 0 < line["spliced_weight"] < 2
    assert line["spliced_weight"] != 1
    capped, never = (run("mini/ours/truncated", ONE, ALL, f"rl.splice_weight_cap={cap}") for cap in (0.01, 1e9))
    assert capped.lines[0]["splice_weights_cut"] > 0
    assert never.idle == ["rl.splice_weight=truncated"]
