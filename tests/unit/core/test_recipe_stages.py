"""[[stages]] of a recipe: what each comes to, and that what is wrong is named by file, line and key."""

import re
from pathlib import Path

import pytest

from retcon.cli.recipes import changes
from retcon.config.load import apply_override, find_line, load_recipe
from retcon.config.schema import stages_of
from retcon.core.errors import RecipeError

THREE = """
[rl]
steps = 60
lr = 1e-3

[rollout]
max_tokens = 300

[repair]
kind = "saar"
gamma = 0.3
probability = 0.5

[[stages]]
name = "short"
steps = 10
rollout.max_tokens = 100

[[stages]]
name = "raw"
steps = 20
[stages.repair]
kind = "none"

[[stages]]
name = "long"
optimizer = "new"
[stages.rl]
lr = 1e-4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(THREE)
    return tmp_path / "mine.toml"


def refusal(tmp_path: Path, old: str, new: str, *overrides: str) -> str:
    assert old in THREE
    text = THREE.replace(old, new)
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "mine.toml", overrides)
    return str(caught.value)


def test_a_stage_is_the_recipe_with_its_keys_on_top(file: Path) -> None:
    recipe = load_recipe(file)
    short, raw, long = (stage.recipe for stage in stages_of(recipe))
    assert [r.rollout.max_tokens for r in (short, raw, long, recipe)] == [100, 300, 300, 300]
    assert [r.rl.lr for r in (short, raw, long, recipe)] == [1e-3, 1e-3, 1e-4, 1e-3]
    assert short.repair == long.repair == recipe.repair
    assert raw.repair.model_dump() == {
        "kind": "none", "probability": 0.5, "probability_schedule": (), "probes": 0, "least_probability": 0.0,
    }, "γ is SAAR's"  # fmt: skip


def test_stages_follow_each_other(file: Path) -> None:
    stages = stages_of(load_recipe(file))
    assert [(s.number, s.name, s.before, s.last) for s in stages] == [
        (1, "short", 0, 10),
        (2, "raw", 10, 30),
        (3, "long", 30, 60),
    ]
    assert [s.anew for s in stages] == [False, False, True]
    assert [s.falling for s in stages] == [(0, 30), (0, 30), (30, 60)], "of those that share an optimiser"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("rollout.max_tokens = 100", "rollout.max_token = 100", 17, "stage 1, short: unknown key 'max_token' in [rol"),
        ("rollout.max_tokens = 100", "rollout.max_tokens = 0", 17, "rollout.max_tokens = 0 is not allowed"),
        ('kind = "none"', 'kind = "nome"', 23, "(did you mean 'none'?)"),
        ('kind = "none"', 'kind = "none"\ngamma = 0.2', 24, 'repair.gamma belongs to kind = "branch" or "saar"'),
        ("[stages.rl]\nlr = 1e-4", "[stages.rl]\ngroup = 1", 28, "stage 3, long: rl: a group of 1 has no variance"),
        ("[stages.rl]", "[stages.rll]", 28, "unknown key 'rll' (did you mean 'rl'?); a stage has name, steps"),
        ("[stages.rl]\nlr", "[stages.sft]\nlr", 28, "[sft] is of the whole run: a stage can change task, rollout"),
        ("[stages.rl]\nlr = 1e-4", "[stages.rl]\nsteps = 9", 29, "whole run: set it in [rl]; the stage's own are"),
        ("steps = 20", "step = 20", 21, "stage 2, raw: unknown key 'step' (did you mean 'steps'?)"),
        ("steps = 20", "steps = 50", 21, "no step of rl.steps = 60 is left for stage long"),
        ("steps = 20\n", "", 19, "every stage but the last says how many steps it has"),
        ('optimizer = "new"', 'optimizer = "old"', 27, "optimizer = \"old\" is not allowed: input should be 'keep' or"),
        ('optimizer = "new"', "steps = 40", 27, "the stages have 70 steps in all, and rl.steps = 60: make them equal"),
        ('name = "long"', 'name = "raw"', 26, "there is another stage of that name: short, raw, raw"),
        ('name = "long"', 'name = "3"', 26, 'name = "3" is not allowed: letters, digits, - and _, and not digits'),
        ('name = "long"\n', "", 25, "stage 3: it has no name"),
        ("[rollout]\nmax_tokens = 300", "[stages.select]\nmin_positive = 9", 8, "stages: write each as [[stages]]"),
    ],
)
def test_what_is_wrong_is_named_by_line_stage_and_key(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    if "write each" in said:
        (tmp_path / "mine.toml").write_text("[rl]\nsteps = 2\n[stages]\nname = 'x'\n")
        with pytest.raises(RecipeError, match=re.escape(said)):
            load_recipe(tmp_path / "mine.toml")
        return
    message = refusal(tmp_path, old, new)
    assert f"mine.toml, line {line}: " in message
    assert said in message


def test_a_rule_over_sections_of_a_stage_names_the_stage(tmp_path: Path) -> None:
    message = refusal(tmp_path, "rollout.max_tokens = 100", "rollout.max_tokens = 100\nrl.overlong_buffer = 120")
    assert "mine.toml, line 18: stage 1, short: rl: overlong_buffer = 120 must be less than rollout.max_tok" in message


def test_overrides_name_a_stage_by_number_or_name(file: Path) -> None:
    recipe = load_recipe(
        file, ["stages.1.rollout.max_tokens=120", "stages.long.rl.lr=.5", "stages.2.repair.probability=1"]
    )
    short, raw, long = (stage.recipe for stage in stages_of(recipe))
    assert (short.rollout.max_tokens, raw.repair.probability, long.rl.lr) == (120, 1.0, 0.5)


def test_an_override_of_a_kind_in_a_stage_drops_what_only_the_other_kind_has(file: Path) -> None:
    recipe = load_recipe(file, ["stages.raw.repair.gamma=0.9", "stages.raw.repair.kind=saar"])
    assert stages_of(recipe)[1].recipe.repair.model_dump()["gamma"] == 0.9
    back = apply_override(recipe, "stages.raw.repair.kind=none")
    assert "gamma" not in stages_of(back)[1].recipe.repair.model_dump()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.4.rl.lr=1", "no stage '4'; there are: 1 short, 2 raw, 3 long"),
        ("stages.lng.rl.lr=1", "no stage 'lng' (did you mean 'long'?)"),
        ("stages.1.rl.lrr=1", "stage 1, short: unknown key 'lrr' in [rl] (did you mean 'lr'?)"),
        ("stages.1.model.path=x", "[model] is of the whole run"),
        ("stages.1.step=3", "one of its own: name, steps, optimizer"),
        ("stages=3", "write stages.1.section.key=value"),
        ("rl.steps=20", "no step of rl.steps = 20 is left for stage long"),
        ("repair.kind=none", "is wrong here"),
    ],
)
def test_a_bad_override_of_a_stage_is_named(file: Path, override: str, said: str) -> None:
    if "wrong here" in said:
        file.write_text(THREE.replace('kind = "none"', "gamma = 0.9"))
        said = 'stage 2, raw: repair.gamma belongs to kind = "branch" or "saar"'
    with pytest.raises(RecipeError) as caught:
        load_recipe(file, ["rl.lr=1e-2", override, "rl.prompts=3"])
    assert f"override '{override}'" in str(caught.value)
    assert said in str(caught.value)


def test_what_a_stage_changes_is_listed(file: Path) -> None:
    found = {change.key: (change.value, change.default) for change in changes(load_recipe(file))}
    assert found["stages.1.steps"] == ("10", "")
    assert found["stages.1.rollout.max_tokens"] == ("100", "300")
    assert found["stages.2.repair.kind"] == ('"none"', '"saar"')
    assert found["stages.3.optimizer"] == ('"new"', "")
    assert "stages.3.steps" not in found
    assert "stages.3.repair.kind" not in found


def test_lines_of_tables_in_arrays_are_distinguished() -> None:
    assert find_line(THREE, "stages", 0, "steps") == 16
    assert find_line(THREE, "stages", 1, "steps") == 21
    assert find_line(THREE, "rl", "steps") == 3
    assert find_line(THREE, "stages", 2, "steps") == 25, "where it is not set, the table's own line"
