"""What recipes that are shipped say of themselves, and that the docs say the same."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import Field
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.cli.recipes import about_file, about_shipped, changes, markdown_list
from retcon.config.load import load_recipe, shipped_recipes
from retcon.config.schema import SECTIONS, Recipe, RepairSection, RLSection, find_stage, stages_of
from retcon.core.errors import RecipeError
from retcon.train.prompts import check_rate_bounds

SHIPPED = shipped_recipes()
OURS = ("mini/", "quickstart/", "smollm2/", "rstar2-14b/sft_mini", "own")
PUBLISHED = [name for name in SHIPPED if not name.startswith(OURS)]


def listed(*words: str) -> str:
    return CliRunner().invoke(app, ["recipes", *words], env={"COLUMNS": "200"}).output


def test_a_recipe_begins_with_a_sentence_on_what_it_is() -> None:
    about = {name: about_file(name, path).what for name, path in SHIPPED.items()}
    assert [name for name, what in about.items() if len(what) <= 20 or not what.endswith(".")] == []


def test_every_value_of_a_published_recipe_has_its_source() -> None:
    bare = []
    for name in PUBLISHED:
        text = SHIPPED[name].read_text(encoding="utf-8")
        values = [line for line in text.splitlines() if re.match(r"(?!kind)\w+ = ", line)]
        bare += [f"{name}: {line}" for line in values if not re.search(r"  # \w", line)]
        assert "# Sources" in text, name
        assert "ours" in text.lower(), name
        assert tomllib.loads(text)["model"]["path"], name
    assert bare == [], "name the source, or that it is ours"


def test_a_published_recipe_lists_what_of_it_is_not_here() -> None:
    missing = {name: about_file(name, SHIPPED[name]).missing for name in PUBLISHED}
    assert [name for name, items in missing.items() if len(items) < 2 or min(map(len, items)) <= 20] == []


def test_the_wall_time_of_a_call_is_not_cut_short_by_the_default_of_its_cpu_time() -> None:
    """What a paper's sandbox lets run, so long as its timeout, is no TimeoutError here."""
    for name in PUBLISHED:
        sandbox = load_recipe(SHIPPED[name], []).sandbox
        assert "wall_seconds" not in sandbox.model_fields_set or "cpu_seconds" in sandbox.model_fields_set, name
        assert sandbox.cpu_seconds <= sandbox.wall_seconds, name


def test_bounds_of_pass_rates_come_with_their_file() -> None:
    """Without it a stage of hard problems would draw all of them."""
    for name, path in SHIPPED.items():
        for stage in stages_of(load_recipe(path, [])):
            check_rate_bounds(stage.recipe.select, f"{name}, {stage}: ")
    hard = find_stage(load_recipe("rstar2-14b/rl", []), "hard", "").recipe.select
    assert hard == load_recipe("rstar2-14b/stage3", []).select
    assert hard.pass_rates


def test_the_page_on_recipes_lists_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training" / "recipes.md").read_text(encoding="utf-8")
    assert markdown_list(about_shipped()) in page, "put in what `retcon recipes --markdown` prints"
    assert listed("--markdown").strip() in page


def test_all_are_listed_by_folder() -> None:
    words = [line.split()[0] for line in listed().splitlines() if line.strip()]
    found = [word for word in words if word in SHIPPED]
    assert found == sorted(SHIPPED, key=lambda name: (name.rpartition("/")[0], name))


def test_one_is_explained() -> None:
    text = listed("arpo-7b")
    assert SHIPPED["arpo-7b"].read_text(encoding="utf-8") in text
    assert re.search(r"rl\.dual_clip +3\.0 +0\.0", text)
    assert re.search(r'task\.kind +"file" +"numbers"', text)
    assert not re.search(r"rl\.clip_low +", text), "it has the default's value"
    assert "(deep_research.py)" in text.partition("not here yet")[2]


def test_an_unknown_one_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'mini/cleaner'\?.*retcon recipes"):
        CliRunner().invoke(app, ["recipes", "mini/cleanr"], catch_exceptions=False)


class NeedsAKey(RepairSection):
    """A kind of someone's own, one key of which has no default."""

    patience: int = Field(ge=1)


def test_what_an_own_kind_changes_is_shown_without_a_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'[repair]\nkind = "{__name__}:NeedsAKey"\npatience = 2\n')
    recipe = load_recipe(file, ["rl.algorithm=grpo"])
    found = {change.key: (change.value, change.default) for change in changes(recipe)}
    assert found == {
        "rl.algorithm": ('"grpo"', '"dapo"'),
        "repair.kind": (f'"{__name__}:NeedsAKey"', '"none"'),
        "repair.patience": ("2", ""),
    }


def apart(one: Recipe, other: Recipe) -> set[str]:
    """Keys that differ; a section alone where it is of another kind. Of algorithms, those that all of them have."""
    found = {"stages"} if one.stages != other.stages else set()
    for name in SECTIONS:
        ours, theirs = getattr(one, name), getattr(other, name)
        if type(ours) is not type(theirs) and name != "rl":
            found.add(name)
            continue
        keys = RLSection.model_fields if name == "rl" else type(ours).model_fields
        found |= {f"{name}.{key}" for key in keys if getattr(ours, key) != getattr(theirs, key)}
    return found


SHORT = ("rl.steps", "sandbox.cpu_seconds", "evaluate.samples", "evaluate.top_p")
"""Keys by which a quickstart is short."""
ABOUT = {
    "mini/dapo-baseline": (),
    "mini/grpo": ("rl.algorithm",),
    "mini/dr_grpo": ("rl.algorithm",),
    "mini/gspo": ("rl.algorithm",),
    "mini/cispo": ("rl.algorithm",),
    "mini/rloo": ("rl.algorithm",),
    "mini/reinforce_pp": ("rl.algorithm",),
    "mini/kl": ("rl.algorithm", "rl.kl"),
    "mini/dapo": ("rl.overlong_buffer", "select.dynamic"),
    "mini/dual-clip": (),  # of which only this algorithm's own key says something
    "mini/importance": ("compute.rollout_dtype", "rl.old_logprobs", "rl.correction"),
    "mini/simpletir": ("rl.void_turns", "rl.masked_in_baseline"),
    "mini/arpo": ("strategy",),
    "mini/echo": ("rl.echo",),
    "mini/sdpo": ("rl.sdpo",),
    "mini/rtmc": ("rl.step_advantage",),
    "mini/branpo": ("strategy", "rl.step_advantage", "rl.prompts", "rl.group"),
    "mini/fission": ("strategy", "rl.shared_advantage", "rl.prompts", "rl.group"),
    "mini/aepo": ("strategy", "rl.algorithm"),
    "mini/rstar2": ("select",),
    "mini/cleaner": ("repair",),
    "mini/cleaner/saar-70": ("repair",),
    "mini/cleaner/deep": ("repair", "model.path", "rl.lr"),
    "mini/cleaner/dpo": ("repair", "rl.dpo_beta"),
    "mini/stages/recovery": ("stages",),
    "mini/stages/rstar2": ("stages", "select"),
    "mini/ours/accept": ("repair", "rl.splice_weight"),
    "mini/ours/adaptive": ("repair",),
    "mini/ours/agree": ("repair",),
    "mini/ours/blame": ("rl.blame",),
    "mini/ours/branch": ("repair", "rl.contrast"),
    "mini/ours/describe": ("repair",),
    "mini/ours/imitate": ("repair", "rl.imitate_spliced"),
    "mini/ours/masked-failures": ("rl.failed_calls",),
    "mini/ours/roc-branch": ("repair", "select", "rl.contrast", "rl.mask_negative_spliced"),
    "mini/ours/roc-saar": ("repair", "select", "rl.mask_negative_spliced"),
    "mini/ours/truncated": ("repair", "rl.splice_weight"),
    "mini/ours/veto": ("repair", "rl.mask_negative_spliced"),
    "quickstart/baseline": SHORT,
    "quickstart/saar": (*SHORT, "repair"),
    "quickstart/roc": (*SHORT, "select"),
    "quickstart/blame": (*SHORT, "rl.blame"),
}
"""What a recipe on the number tasks is about: the keys in which it differs from the baseline."""


def test_a_recipe_on_the_number_tasks_differs_from_the_baseline_in_what_it_is_about_alone() -> None:
    """In a comparison, a learning rate of its own would be taken for what it is named after."""
    baseline = load_recipe("mini/dapo-baseline")
    named = [name for name in SHIPPED if name.startswith(("mini/", "quickstart/")) and name != "quickstart/cold_start"]
    names = [name for name in named if load_recipe(name).task.kind == "numbers"]
    assert {name: apart(load_recipe(name), baseline) for name in names} == {name: set(ABOUT[name]) for name in names}


SAAR = {"attempts": 3, "gamma": 0.5, "lookahead": "all"}


@pytest.mark.parametrize("name", [name for name, keys in ABOUT.items() if "repair" in keys])
def test_repairs_of_the_number_tasks_differ_in_what_they_are_about_alone(name: str) -> None:
    repair = load_recipe(name).repair.model_dump()
    branches = repair["kind"] == "branch"  # whose fresh tries come before SAAR's attempts
    assert {key: repair[key] for key in SAAR if key in repair} == (
        {} if repair["kind"] == "describe" else {**SAAR, **({"attempts": 1} if branches else {})}
    )
    half = ("mini/ours/", "quickstart/saar")
    whole = ("mini/ours/adaptive", "mini/ours/describe")
    share = (
        0.7
        if name in ("mini/cleaner/saar-70", "mini/cleaner/deep")
        else 0.5
        if name.startswith(half) and name not in whole
        else 1.0
    )
    assert repair["probability"] == share


@pytest.mark.parametrize(
    ("name", "other", "keys"),
    [
        (
            "cleaner-7b",
            "cleaner-4b",
            {"model.path", "repair.probability", "rl.lr", "rl.steps", "select.pass_rates"},
        ),
        ("dapo-baseline", "cleaner-4b", {"repair"}),
        (
            "rstar2-14b/stage2",
            "rstar2-14b/stage1",
            {"rollout.max_tokens", "rollout.max_response_tokens", "rl.steps"},
        ),
        (
            "rstar2-14b/stage3",
            "rstar2-14b/stage2",
            {"rollout.max_turns", "rl.steps", "select.pass_rates", "select.min_pass_rate"},
        ),
    ],
)
def test_published_recipes_that_are_one_but_for_something_are_that(name: str, other: str, keys: set[str]) -> None:
    assert apart(load_recipe(name), load_recipe(other)) == keys


def test_the_stages_of_rstar2_in_one_run_are_those_that_there_are_one_by_one() -> None:
    stages = stages_of(load_recipe("rstar2-14b/rl"))
    assert [stage.anew for stage in stages] == [False, False, True]
    for stage in stages:
        alone = load_recipe(f"rstar2-14b/stage{stage.number}")
        assert stage.steps == alone.rl.steps
        assert apart(stage.recipe, alone) == {"rl.steps"}, "which are still those of the whole run"


VALUE = re.compile(r"^([\w.]+) = ([\d_.e-]+)  # (.*)$", re.MULTILINE)
SUM = re.compile(r"(twice )?\b(\d+)\)? \+ (?:\w+ )?(\d+)")
RATIO = re.compile(r"\b(\d+) / (?:\w+ )?(\d+)")
EPOCHS = re.compile(r"(?i:epochs=(\d+)|(\d+) epochs), of ([\d,]+)")


def reckoned(comment: str, batch: int) -> int | None:
    """What the first calculation in a comment comes to. batch: what an epoch is drawn in."""
    if found := SUM.search(comment):
        return (2 if found[1] else 1) * (int(found[2]) + int(found[3]))
    if found := RATIO.search(comment):
        return int(found[1]) // int(found[2])
    if found := EPOCHS.search(comment):
        return int(found[1] or found[2]) * int(found[3].replace(",", "")) // batch
    return None


def test_values_are_what_their_comments_reckon() -> None:
    """`23040  # script: max_prompt_length 2560 + max_response_length 20480`."""
    checked = 0
    for name in PUBLISHED:
        text = SHIPPED[name].read_text(encoding="utf-8")
        recipe = load_recipe(name)
        batch = recipe.sft.batch if "sft" in recipe.model_fields_set else recipe.rl.prompts
        for key, value, comment in VALUE.findall(text):
            if (wanted := reckoned(comment, batch)) is not None:
                assert float(value) == wanted, f"{name}: {key} = {value}  # {comment}"
                checked += 1
    assert checked > 25
