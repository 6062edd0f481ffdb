"""Recipes: what is shipped parses, what is wrong is named by file, line and key."""

from pathlib import Path

import pytest
from pydantic import Field

from retcon.config.load import find_recipe, load_recipe, recipe_to_toml, reference, shipped_recipes
from retcon.config.schema import Recipe, RepairSection, stages_of
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


def test_a_text_names_a_file_or_a_shipped_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[rl]\nsteps = 3\n")
    assert load_recipe(str(tmp_path / "mine.toml")).rl.steps == 3
    assert load_recipe("quickstart/saar", ["rl.steps=3"]).repair.kind == "saar"
    with pytest.raises(RecipeError, match=r"no recipe 'quickstart/sar' \(did you mean 'quickstart/saar'\?\)"):
        load_recipe("quickstart/sar")
    with pytest.raises(RecipeError, match=r"none is named before it: .*; `retcon recipes` lists .*`own`"):
        load_recipe("task.path=mine.jsonl")  # the quickstart's have no such key


def test_a_mistyped_file_suggests_the_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.toml").write_text("[rl]\nsteps = 3\n")
    (tmp_path / "notes.txt").write_text("")
    for typed in ("recipie.toml", "recipe", "Recipe.TOML"):
        with pytest.raises(RecipeError, match=rf"no recipe '.*{typed}' \(did you mean 'recipe\.toml'\?\)"):
            load_recipe(str(tmp_path / typed))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"no recipe 'recipie\.toml' \(did you mean 'recipe\.toml'\?\)"):
        load_recipe("recipie.toml")
    with pytest.raises(RecipeError, match=r"q\.toml': it is"):
        load_recipe(str(tmp_path / "q.toml"))


def test_there_is_no_shipped_recipe_that_is_not_parsed() -> None:
    for path in shipped_recipes().values():
        load_recipe(path)


def test_an_unknown_key_names_file_line_and_nearest_key(tmp_path: Path) -> None:
    message = complaint(tmp_path, "# mine\n[rl]\nsteps = 3\n\n[repair]\ngama = 0.4\n")
    assert "mine.toml, line 6" in message
    assert "'gama' in [repair] (did you mean 'gamma'?)" in message


def test_an_unknown_section_names_line_and_nearest_section(tmp_path: Path) -> None:
    message = complaint(tmp_path, "[rl]\nsteps = 3\n\n[repiar]\nkind = 'saar'\n")
    assert "line 4" in message
    assert "did you mean 'repair'?" in message


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("gamma = 1.5", ["repair.gamma = 1.5", "less than or equal to 1"]),
        ('kind = "sar"', ['repair.kind = "sar"', "did you mean 'saar'?", "none, saar, and by import path"]),
        ("kind = 3", ["repair.kind = 3", "it must be a name: branch, describe, none, saar, or an import path"]),
        ('attempts = "3"', ['repair.attempts = "3"', "valid integer"]),
        ("attempts = true", ["repair.attempts = true", "valid integer"]),
        ("gamma = nan", ["repair.gamma", "finite"]),
        ('failures = ["infrastructure"]', ["repair.failures", "'malformed'"]),
        ("probability_schedule = [[1, 1.5]]", ["repair.probability_schedule = 1.5", "less than or equal to 1"]),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(tmp_path: Path, line: str, parts: list[str]) -> None:
    kind = "" if line.startswith(("kind", "probability")) else '\nkind = "saar"'
    message = complaint(tmp_path, f"[repair]\n{line}{kind}\n")
    assert "mine.toml, line 2" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("wieght = 2", "unknown key 'wieght' in task.sources[1] (did you mean 'weight'?); keys: format, columns, "),
        ("weight = -2", "task.sources[1].weight = -2 is not allowed: input should be greater"),
        ("columns = { question = 3 }", "task.sources[1].columns.question = 3 is not allowed: input should be a valid"),
        ("columns = { qestion = 'q' }", 'task.sources[1].columns = {"qestion": "q"} is not allowed: no field'),
    ],
)
def test_a_key_of_one_of_several_sources_is_named(tmp_path: Path, keys: str, told: str) -> None:
    text = f"[task]\nkind = 'file'\nsources = [\n  'a.csv',\n  {{ path = 'b.csv', {keys} }},\n]\n"
    assert f"mine.toml, line 3: {told}" in complaint(tmp_path, text)


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
    message = complaint(tmp_path, "[rl]\ngroup = 4\n[select]\nkind = 'roc'\nmin_positive = 3\nmin_negative = 2\n")
    assert "line 3: select: min_positive 3 + min_negative 2 exceed rl.group = 4" in message
    whole = ["rl.group=4", "select.kind=roc", "select.min_positive=2", "select.min_negative=2"]
    assert load_recipe(None, whole).rl.group == 4


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


def test_an_unknown_recipe_names_the_nearest_and_the_list() -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'quickstart/saar'.*`retcon recipes`"):
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
        ("rl.steps", "section.key=value"), ("rl.step=3", "did you mean 'steps'?"),
        ("rel.steps=3", "did you mean 'rl'?"), ("gamma=1", "did you mean 'repair.gamma'?"),
        ("repair.probability=2", "less than or equal to 1"),
        ("repair.gamma=0.4", 'repair.gamma belongs to kind = "branch" or "saar"'),
        ("select.draw=rank", 'select.draw belongs to kind = "roc"'), ("repair.gamma.x=2", "unknown key 'gamma.x'"),
        ("rl.group=1", "no variance"),
    ],
)  # fmt: skip
def test_a_bad_override_is_named(override: str, part: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, [override])
    assert f"override '{override}'" in str(caught.value)
    assert part in str(caught.value)


def test_a_name_that_is_no_utf8_is_refused_as_such() -> None:
    """As the shell gives it, of a file that Latin-1 has named."""
    with pytest.raises(RecipeError, match=r"^override 'model\.path=a\udce4': it is not in UTF-8"):
        load_recipe(None, ["rl.steps=3", "model.path=a\udce4"])


def test_a_saved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe(None, ["repair.kind=saar", 'model.path="a \\"quoted\\" é\\\\path"', "rl.lr=1e-5"])
    (tmp_path / "saved.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "saved.toml") == recipe


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_can_be_saved(tmp_path: Path, name: str) -> None:
    """Tables inside of values, several sources of data, and stages among it."""
    recipe = load_recipe(shipped_recipes()[name])
    (tmp_path / "saved.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    saved = load_recipe(tmp_path / "saved.toml")
    assert saved.model_dump(mode="json") == recipe.model_dump(mode="json")
    assert stages_of(saved) == stages_of(recipe)


def test_the_page_on_recipes_shows_every_key_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "training" / "recipes.md").read_text(encoding="utf-8")
    assert f"```toml\n{reference().rstrip()}\n```\n" in page
    assert page.count("\n```toml\n") == 1
    assert page.count("\n[rl]\n") == 1


def test_a_key_of_another_kind_is_refused_by_file_and_line(tmp_path: Path) -> None:
    message = complaint(tmp_path, '[repair]\nkind = "none"\ngamma = 0.3\n')
    assert message.endswith('mine.toml, line 3: repair.gamma belongs to kind = "branch" or "saar"')


def test_an_override_of_a_kind_may_come_after_those_of_its_keys() -> None:
    recipe = load_recipe(None, ["repair.gamma=0.3", "repair.kind=saar"])
    assert recipe.repair.model_dump()["gamma"] == 0.3


def test_probes_leave_rollouts_to_purify() -> None:
    load_recipe(None, ["repair.kind=saar", "rl.group=4", "repair.probes=3"])
    with pytest.raises(RecipeError, match=r"probes = 4 leaves none of the 4 rollouts"):
        load_recipe(None, ["repair.kind=saar", "rl.group=4", "repair.probes=4"])
    with pytest.raises(RecipeError, match=r"probes = 3: rollouts that branch off each other cannot wait"):
        load_recipe(None, ["repair.kind=saar", "rl.group=4", "repair.probes=3", "strategy.kind=arpo"])


@pytest.mark.parametrize("algorithm", ["dapo", "gspo"])
def test_a_ratio_is_not_clipped_below_nought(algorithm: str) -> None:
    with pytest.raises(RecipeError, match="clip_low"):
        load_recipe(None, [f"rl.algorithm={algorithm}", "rl.clip_low=2"])


def test_another_algorithm_brings_its_own_clip() -> None:
    clips = {
        name: load_recipe(None, [f"rl.algorithm={name}"]).rl.model_dump()["clip_high"] for name in ("grpo", "dapo")
    }
    assert clips == {"grpo": 0.2, "dapo": 0.28}


class OwnRepair(RepairSection):
    """A kind that no file of ours holds."""

    patience: int = Field(4, ge=1)


def test_a_kind_can_be_named_by_its_import_path(tmp_path: Path) -> None:
    named = f"{__name__}:OwnRepair"
    recipe = load_recipe(None, [f"repair.kind={named}", "repair.patience=7"])
    assert recipe.repair == OwnRepair(patience=7)
    assert recipe.repair.kind == named
    (tmp_path / "saved.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "saved.toml") == recipe
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_its_keys_are_the_nearest_ones(tmp_path: Path) -> None:
    message = complaint(tmp_path, f'[repair]\nkind = "{__name__}:OwnRepair"\npatince = 5\n')
    assert "line 3: unknown key 'patince' in [repair] (did you mean 'patience'?)" in message
    near = r"did you mean 'repair\.patience' or 'sandbox\.patience'\?"
    with pytest.raises(RecipeError, match=rf"'patience' has no section; .*{near}"):
        load_recipe(None, [f"repair.kind={__name__}:OwnRepair", "patience=5"])


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (f"{__name__}:OwnRepare", "test_recipe has no 'OwnRepare' (did you mean 'OwnRepair'?)"),
        ("no_such_module:Thing", "No module named 'no_such_module'"),
        ("pathlib:Path", "is not a subclass of retcon.config.schema.RepairSection"),
        (":Thing", "cannot be imported"),
    ],
)
def test_an_import_path_that_leads_nowhere_is_named(tmp_path: Path, kind: str, part: str) -> None:
    message = complaint(tmp_path, f'\n[repair]\nkind = "{kind}"\n')
    assert "mine.toml, line 3: repair.kind = " in message
    assert part in message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("compute.device=gpu", ["compute.device", "did you mean 'cuda'?"]),
        ("compute.device=cude:0", ["did you mean 'cuda:0'?"]),
        ("compute.device=cuda:x", ["no such device"]),
        ("compute.dtype=float16", ["compute.dtype", "'float32' or 'bfloat16'"]),
        ("compute.rollout_dtype=half", ["'float16'"]),
        ("lora.targets=[]", ["lora.targets", "all-linear alone, or one linear layer or more"]),
        ('lora.targets=["all-linear", "q_proj"]', ["all-linear alone"]),
        ("lora.rnk=3", ["did you mean 'rank'?"]),
    ],
)
def test_where_to_compute_said_wrong(override: str, parts: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, [override])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[rollout]\ntools = ["pyton"]',
            "rollout.tools = [\"pyton\"] is not allowed: no tool 'pyton' (did you mean 'python'?)",
        ),
        ('[rollout]\ntools = "serch"', "rollout.tools = \"serch\" is not allowed: no tool 'serch'"),
        (
            '[model]\nstyle = "qwenn"',
            "model.style = \"qwenn\" is not allowed: no chat family 'qwenn' (did you mean 'qwen'?)",
        ),
        (
            '[track]\nto = ["wandbb"]',
            "track.to = [\"wandbb\"] is not allowed: no tracker 'wandbb' (did you mean 'wandb'?)",
        ),
    ],
)
def test_a_name_that_there_is_not_is_told_with_its_key_and_line(tmp_path: Path, text: str, said: str) -> None:
    assert f"mine.toml, line 2: {said}" in complaint(tmp_path, f"{text}\n")
    assert load_recipe(None, ["model.style=own:MINE", "track.to=own:Mine", "rollout.tools=own:Tool"]).track.to


def test_thinking_is_refused_where_no_template_is_told_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nstyle = "qwen"\nthinking = "off"\n')
    with pytest.raises(RecipeError, match=r"mine\.toml.*3.*model\.thinking.* not used with style = 'qwen'"):
        load_recipe(str(file))
    file.write_text('[model]\nstyle = "qwen"\n')
    assert load_recipe(str(file), ["model.thinking=off", "model.style=auto"]).model.thinking == "off"
