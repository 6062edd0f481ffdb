"""`--dry-run`: a plan by a real measurement, nothing written, and the same refusals as the run itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner

from retcon.chat.tokenizer import load_tokenizer
from retcon.cli.app import app
from retcon.config.load import load_recipe
from retcon.config.schema import stages_of
from retcon.core.errors import CheckpointError, ComputeWarning, MissingExtra, RecipeError, SandboxUnavailable
from retcon.evaluate.runner import run_evaluation
from retcon.models.placing import place_training
from retcon.planning import needs as module
from retcon.planning.needs import check_fits, needs_of
from retcon.runs.tracking import Tracker
from retcon.store import jsonl
from retcon.train.measuring import Measurement
from retcon.train.rl import run_rl
from training import make_base, make_demonstrations

pytestmark = pytest.mark.torch
PROBLEMS = Path(__file__).parents[2] / "examples/own_data/problems.jsonl"
SMALL = (
    "rl.prompts=1", "rl.group=4", "rl.steps=7", "sandbox.workers=1", "task.kind=file", f'task.path="{PROBLEMS}"',
    "rollout.max_turns=1", "compute.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=256)


def dry(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words), "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_training_is_planned_and_nothing_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = dry("train", "quickstart/baseline", *SMALL, "--from", base, "--out", tmp_path / "out")
    for part in (
        "derived: rollout.max_tokens = ", "derived: sandbox.output_chars = ", "weights", "gradients", "optimiser",
        "KV blocks", "activations", "peak, about", "tokens/s", "7 steps: ", "measured peak",
    ):  # fmt: skip
        assert part in said, part
    assert not list(tmp_path.iterdir())


UNGRADABLE = """
class Counter:
    def reset(self, **row):
        self.value = 0
        return f"Bring the counter to {row['seed']}."

    def add(self, amount: int) -> int:
        '''Adds to the counter.

        Args:
            amount: how much
        '''
        self.value += amount
        return self.value

    def get_reward(self):
        raise OSError("no judge")
"""


def test_where_faults_take_every_rollout_neither_plan_nor_run_goes_on_and_both_say_why(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ungradable.py").write_text(UNGRADABLE)
    monkeypatch.syspath_prepend(tmp_path)
    given = (
        "task.kind=trl", "task.environment=ungradable:Counter", "task.seeds=8", "rollout.tools=[]", "rl.prompts=1",
        "model.style=hermes",
        "rl.group=2", "rollout.max_turns=1", "rollout.max_tokens=120", "compute.device=cpu", "sandbox.workers=1",
    )  # fmt: skip
    words = ["train", "quickstart/baseline", *given, "--from", str(base), "--out", str(tmp_path / "out")]
    planned, run = (CliRunner().invoke(app, [*words, *more]) for more in (["--dry-run"], []))
    assert isinstance(planned.exception, SandboxUnavailable), planned.output
    assert "faults took all rollouts of the measurement" in str(planned.exception)
    assert isinstance(run.exception, SandboxUnavailable), run.output
    assert "step 1: infrastructure faults left fewer than two rollouts" in str(run.exception)
    assert all("no judge" in str(said.exception) for said in (planned, run))


STAGES = """
[[stages]]
name = "short"
steps = 3
[[stages]]
name = "long"
optimizer = "new"
rollout.max_tokens = 150
rl.prompts = 2
rl.kl = 0.1
"""


def test_each_stage_is_planned(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(STAGES)
    monkeypatch.chdir(tmp_path)
    rates = "stages.long.select.pass_rates=rates.jsonl"
    said = dry("train", "mine.toml", *SMALL, "rollout.max_tokens=120", rates, "--from", base, "--out", tmp_path / "o")
    for part in (
        "stage 2, long: rates.jsonl is not there yet: the run will stop before this stage",
        "stage 1, short: steps 1 to 3\n", "a step: 1 prompt × 4 rollouts, 480 tokens at most; 3 steps",
        "stage 2, long: steps 4 to 7, with a new optimiser\n", "2 prompts × 4 rollouts, 1,200 tokens at most; 4 steps",
        "\n3 steps: ", "\n4 steps: ", "7 steps in all: ",
    ):  # fmt: skip
        assert part in said, part
    assert said.count("peak, about") == 2
    assert said.count("reference") == 2, "of the KL penalty of one stage, in memory from the first on"
    assert said.count("stage 2, long: rollout.lookahead_tokens = ") == 1, "derived for its own limit"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


def test_the_stage_that_may_not_fit_is_named(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(STAGES)
    recipe = load_recipe(tmp_path / "mine.toml", [*SMALL, "stages.long.rollout.max_tokens=2000000"])
    monkeypatch.setattr(module, "available_memory", lambda: 2 * 2**30)
    needs = [(stage, needs_of("rl", stage.recipe, base, place_training(recipe, base))) for stage in stages_of(recipe)]
    with pytest.warns(ComputeWarning, match=r"^stage 2, long takes up to .* most of it is activations") as caught:
        list(map(check_fits, [needed for _, needed in needs], [tmp_path] * 2, [stage for stage, _ in needs]))
    assert len(caught) == 1


def test_the_plan_of_an_evaluation_refuses_what_the_evaluation_would(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("eval", base, "--data", PROBLEMS, "evaluate.samples=1", "rollout.max_turns=1", "evaluate.top_p=1.0")
    said = dry(*words, "rollout.max_tokens=200", "evaluate.problems=5")
    assert "problems: 5 of the 50 of problems × 1 rollout\n" in said
    assert "5 rollouts in all: " in said
    with pytest.raises(RecipeError, match=r"leave no room"):
        dry(*words, "rollout.max_tokens=20")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"mine holds notes\.txt, and no result\.json"):
        dry(*words, "rollout.max_tokens=200", "--out", "mine")


def foretold(said: str) -> int:
    """Tokens of a step's update, by a plan."""
    found = re.search(r"updates: [\d.]+ s a step \(([\d,]+) tokens", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def test_epochs_and_evaluations_on_the_way_are_part_of_what_a_training_takes(base: Path, tmp_path: Path) -> None:
    words = ("train", "quickstart/baseline", *SMALL, "rollout.max_tokens=120", "--from", base, "--out", tmp_path / "o")
    once = dry(*words)
    assert "evaluations on the way" not in once
    assert "forward passes before" not in once
    more = dry(*words, "rl.epochs=3", "evaluate.every=3", "evaluate.problems=5", "evaluate.every_samples=2")
    assert foretold(more) == 3 * foretold(once)
    assert "evaluations on the way: 3 of 10 rollouts, " in more, "after steps 3, 6 and the last, 7"
    for key in ("old_logprobs=recompute", "kl=0.1"):
        assert "forward passes before the updates: " in dry(*words, f"rl.{key}"), key


def test_a_step_takes_rollouts_forward_passes_and_updates() -> None:
    took = Measurement(1.0, 2.0, True, 1, 1.0, 1.0, 1, scoring_seconds=4.0)
    assert took.step_seconds == 7.0
    assert replace(took, rollout_seconds=None).step_seconds == 6.0


def test_a_supervised_training_is_planned_and_takes_the_tokens_that_were_foretold(base: Path, tmp_path: Path) -> None:
    file = make_demonstrations(base, tmp_path / "demonstrations.jsonl")
    words = ("sft", "quickstart/cold_start", "sft.steps=3", "sft.batch=10", f"model.path={base}", "compute.device=cpu")
    before = sorted(tmp_path.iterdir())
    said = dry(*words, "--demonstrations", file, "--out", tmp_path / "out")
    lengths = [sum(len(s.ids or ()) for s in t.segments) for t in jsonl.read(file)]
    assert f"samples: 30, the longest of {max(lengths):,} tokens; 10 a step, 3 steps" in said
    assert foretold(said) == round(10 * sum(lengths) / 30)
    for part in ("optimiser", "gradients", "activations", "peak, about", "3 steps: ", "measured peak"):
        assert part in said, part
    assert "KV blocks" not in said
    assert sorted(tmp_path.iterdir()) == before
    done = CliRunner().invoke(app, [*map(str, words), "--demonstrations", str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    with pytest.raises(RecipeError, match=r"absent\.jsonl is not there: --dry-run needs the demonstrations"):
        dry(*words, "demos.kind=teacher", "--demonstrations", tmp_path / "absent.jsonl", "--out", tmp_path / "new")
    with pytest.raises(RecipeError, match=r"no room for an answer"):  # in what it is to solve in the end
        dry(*words, "sft.samples=2", "rollout.max_tokens=20", "--demonstrations", file, "--out", tmp_path / "new")


def test_a_preference_training_is_planned_with_both_sides_of_its_pairs(base: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    prompt, chosen, rejected = ("What is 6 times 7?\n", "It is 42.<|im_end|>", "It is 41, as 6 + 35 is.<|im_end|>")
    pairs.write_text(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n")
    words = ("dpo", "dpo.steps=2", "dpo.batch=1", f"model.path={base}", "compute.device=cpu", "--pairs", pairs)
    said = dry(*words, "--out", tmp_path / "out")
    tokenizer = load_tokenizer(base)
    lengths = [sum(len(tokenizer.encode(text, special=True)) for text in (prompt, side)) for side in (chosen, rejected)]
    assert f"samples: 2, the longest of {max(lengths):,} tokens; 2 a step, 2 steps" in said
    assert foretold(said) == sum(lengths)
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output


def test_what_does_not_fit_is_refused_by_both_before_anything_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(None, SMALL)
    monkeypatch.setattr(module, "available_memory", lambda: 100 * 2**20)
    with pytest.raises(RecipeError, match=r"of memory and 100 MiB are free on cpu: most of it is process"):
        run_rl(recipe, base, tmp_path / "out")
    with pytest.raises(RecipeError, match="of memory and 100 MiB are free"):
        dry("train", "quickstart/baseline", *SMALL, "--from", base, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_keys_and_values_that_hold_no_rollout_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", positions=61_000)
    changed = [*SMALL, "rollout.max_tokens=700", "rollout.lookahead_tokens=60000", "compute.kv_memory_mb=1"]
    with pytest.raises(RecipeError, match=r"kv_memory_mb = 1: one rollout of 60,700 tokens .*; set 16 or more"):
        run_rl(load_recipe(None, changed), base, tmp_path / "out")
    with pytest.raises(RecipeError, match=r"kv_memory_mb = 1: one rollout of 60,700 tokens .*; set 16 or more"):
        run_evaluation(load_recipe(None, changed), base, tmp_path / "out")
    (tmp_path / "mine.toml").write_text("[[stages]]\nname = 'short'\nrollout.lookahead_tokens = 100\n")
    staged = ["train", tmp_path / "mine.toml", *changed, "evaluate.every=1", "--from", base, "--out", tmp_path / "out"]
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, [*map(str, staged), *more])
        assert isinstance(done.exception, RecipeError), done.output
        assert "set 16 or more" in str(done.exception), "evaluations on the way are as long as the recipe says"
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_refused_but_not_to_a_run_that_goes_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(None, SMALL)
    needs = needs_of("rl", recipe, base, place_training(recipe, base))
    usage = module.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    out = tmp_path / "out"
    with pytest.raises(RecipeError, match=r"out would take up to \d+ MiB of disk and 0 MiB are free there"):
        check_fits(needs, out)
    out.mkdir()
    (out / "run.json").write_text("{}")
    check_fits(needs, out)


def test_another_run_in_the_folder_and_an_absent_tracker_are_refused_too(base: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    words = ("train", "quickstart/baseline", *SMALL, "--from", base, "--out")
    with pytest.raises(CheckpointError, match=r"out is not empty and has no run\.json"):
        dry(*words, tmp_path / "out")
    with pytest.raises(MissingExtra, match="needs no_such_package"):
        dry(*words, tmp_path / "new", f"track.to={__name__}:Absent")


def test_memory_grows_with_what_it_is_for(base: Path) -> None:
    def parts(*overrides: str) -> dict[str, int]:
        recipe = load_recipe(None, [*SMALL, *overrides])
        return {p.name: p.bytes for p in needs_of("rl", recipe, base, place_training(recipe, base)).memory}

    plain = parts()
    assert plain["optimiser"] == 2 * plain["gradients"] == 2 * plain["weights"]
    assert parts("rl.prompts=2")["KV blocks"] == 2 * plain["KV blocks"]
    assert parts("compute.micro_batch_tokens=4096")["activations"] == 2 * plain["activations"]
    assert parts("compute.checkpointing=true")["activations"] <= plain["activations"]
    narrow = parts("compute.rollout_dtype=bfloat16")
    assert 2 * narrow["weights of rollouts"] == plain["weights"]
    assert 2 * narrow["packed weights"] == plain["packed weights"]
    assert parts("rl.kl=0.1")["reference"] == plain["weights"]
    assert "reference" not in plain
    lora = parts("lora.rank=2")
    assert lora["gradients"] < plain["gradients"] / 4
    assert lora["weights of rollouts"] == plain["weights"]


class Absent(Tracker):
    needs = ("no_such_package",)
