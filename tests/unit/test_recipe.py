"""Recipes: what is shipped parses, what is wrong is named by file, line and key."""

from pathlib import Path

import pytest

from retcon.config.load import SECTIONS, load_recipe
from retcon.config.save import recipe_to_toml
from retcon.config.schema import Recipe
from retcon.config.shipped import find_recipe, shipped_recipes
from retcon.core.errors import RecipeError


def complaint(tmp_path: Path, text: str, *overrides: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", ["quickstart/cold_start", "quickstart/baseline", "quickstart/saar", "quickstart/roc"])
def test_each_shipped_recipe_parses(name: str) -> None:
    assert name in shipped_recipes()
    assert isinstance(load_recipe(find_recipe(name)), Recipe)


def test_there_is_no_shipped_recipe_that_is_not_parsed() -> None:
    for path in shipped_recipes().values():
        load_recipe(path)


def test_the_arms_differ_in_repair_and_selection_only() -> None:
    arms = [load_recipe(find_recipe(f"quickstart/{arm}")) for arm in ("baseline", "saar", "roc")]
    for section in set(SECTIONS) - {"repair", "select"}:
        assert len({getattr(arm, section).model_dump_json() for arm in arms}) == 1, section
    assert [(a.repair.kind, a.select.kind) for a in arms] == [("none", "none"), ("saar", "none"), ("none", "roc")]


def test_an_unknown_key_names_file_line_and_nearest_key(tmp_path: Path) -> None:
    message = complaint(tmp_path, "# mine\n[rl]\nsteps = 3\n\n[repair]\ngama = 0.4\n")
    assert "mine.toml, line 6" in message
    assert "'gama' in [repair] (did you mean 'gamma'?)" in message


def test_the_same_key_in_another_section_does_not_mislead_the_line(tmp_path: Path) -> None:
    assert "line 5" in complaint(tmp_path, "[sft]\nsteps = 3\n\n[rl]\nsteps = 0\n")


def test_an_unknown_section_names_line_and_nearest_section(tmp_path: Path) -> None:
    message = complaint(tmp_path, "[rl]\nsteps = 3\n\n[repiar]\nkind = 'saar'\n")
    assert "line 4" in message
    assert "did you mean 'repair'?" in message


@pytest.mark.parametrize("text", ["repair.gama = 1", "repair = { gama = 1 }"])
def test_dotted_keys_and_inline_tables_have_lines_too(tmp_path: Path, text: str) -> None:
    message = complaint(tmp_path, f"rl.steps = 4\n{text}\n")
    assert "line 2" in message
    assert "gamma" in message


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("gamma = 1.5", ["repair.gamma = 1.5", "less than or equal to 1"]),
        ('kind = "sar"', ['repair.kind = "sar"', "'none' or 'saar'"]),
        ('attempts = "3"', ['repair.attempts = "3"', "valid integer"]),
        ("attempts = true", ["repair.attempts = true", "valid integer"]),
        ("gamma = nan", ["repair.gamma", "finite"]),
        ('failures = ["infrastructure"]', ["repair.failures", "'malformed'"]),
        ("probability_schedule = [[1, 1.5]]", ["repair.probability_schedule = 1.5", "less than or equal to 1"]),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(tmp_path: Path, line: str, parts: list[str]) -> None:
    message = complaint(tmp_path, f"[repair]\n{line}\n")
    assert "mine.toml, line 2" in message
    for part in parts:
        assert part in message


def test_a_rule_over_a_section_names_the_section(tmp_path: Path) -> None:
    message = complaint(tmp_path, "[rl]\ngroup = 1\n")
    assert "line 1: rl: a group of 1 has no variance" in message


def test_the_steps_of_a_schedule_must_not_decrease() -> None:
    assert load_recipe(None, ["repair.probability_schedule=[[1, 1], [40, 0.5]]"]).repair.probability_schedule[1] == (
        40,
        0.5,
    )
    with pytest.raises(RecipeError, match=r"steps of probability_schedule must not decrease: \[5, 4\]"):
        load_recipe(None, ["repair.probability_schedule=[[5, 1.0], [4, 0.5]]"])


def test_a_rule_over_two_sections_names_the_one_to_look_at(tmp_path: Path) -> None:
    message = complaint(tmp_path, "[rl]\ngroup = 4\n[select]\nmin_positive = 3\nmin_negative = 2\n")
    assert "line 3: select: min_positive 3 + min_negative 2 exceed rl.group = 4" in message


def test_a_value_where_a_section_belongs(tmp_path: Path) -> None:
    assert "line 2: rl: " in complaint(tmp_path, "\nrl = 3\n")


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    message = complaint(tmp_path, "[rl]\nsteps = \n")
    assert "mine.toml" in message
    assert "line 2" in message


def test_a_missing_file_and_an_unreadable_one_are_recipe_errors(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such recipe"):
        load_recipe(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "latin.toml")


def test_an_unknown_recipe_lists_the_names() -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'quickstart/saar'.*quickstart/baseline"):
        find_recipe("quickstart/sar")


def test_overrides_take_toml_values_and_bare_strings() -> None:
    recipe = load_recipe(
        None,
        ["rl.steps=7", "rl.lr=1", "repair.kind=saar", 'repair.failures=["error"]', "model.path=/x/y=z", "rl.steps=8"],
    )
    assert (recipe.rl.steps, recipe.rl.lr, recipe.repair.kind) == (8, 1.0, "saar")
    assert recipe.repair.failures == ("error",)
    assert recipe.model.path == "/x/y=z"


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("rl.steps", "section.key=value"),
        ("rl.step=3", "did you mean 'steps'?"),
        ("rel.steps=3", "did you mean 'rl'?"),
        ("gamma=1", "did you mean 'repair.gamma'?"),
        ("repair.gamma=2", "less than or equal to 1"),
        ("repair.gamma.x=2", "unknown key 'gamma.x'"),
        ("rl.group=1", "no variance"),
    ],
)
def test_a_bad_override_is_named(override: str, part: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, [override])
    assert f"override '{override}'" in str(caught.value)
    assert part in str(caught.value)


def test_a_saved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe(None, ["repair.kind=saar", 'model.path="a \\"quoted\\" é\\\\path"', "rl.lr=1e-5"])
    (tmp_path / "saved.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "saved.toml") == recipe


def test_the_page_on_recipes_shows_every_key_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert recipe_to_toml(Recipe()).rstrip() in page
