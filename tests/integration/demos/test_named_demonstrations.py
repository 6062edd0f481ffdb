"""`retcon sft --demonstrations FILE` where FILE is not there, or something else lies beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from retcon.cli import demonstrations
from retcon.cli.app import app
from retcon.cli.arguments import names_demos
from retcon.cli.runner import cold_start
from retcon.config.load import load_recipe, recipe_to_toml
from retcon.core.errors import CheckpointError, RecipeError, RecordError
from training import make_base, make_demonstrations

pytestmark = pytest.mark.torch
FEW = ("sft.demonstrations=2", "sft.steps=1", "sft.batch=2", "sandbox.workers=1", "compute.device=cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=2048)


def sft(base: Path, out: Path, *words: object) -> list[str]:
    return list(map(str, ["sft", "quickstart/cold_start", *FEW, f"model.path={base}", *words, "--out", out]))


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "plan"])
def test_a_mistyped_file_is_refused_with_the_nearest_and_nothing_is_written(
    base: Path, tmp_path: Path, dry: tuple[str, ...]
) -> None:
    make_demonstrations(base, tmp_path / "clean.jsonl")
    words = sft(base, tmp_path / "run", "--demonstrations", tmp_path / "claen.jsonl", *dry)
    with pytest.raises(RecipeError, match=r"claen\.jsonl is not there \(did you mean 'clean\.jsonl'\?\).*retcon demos"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    absent = sft(base, tmp_path / "run", "lora.rank=4", "--demonstrations", tmp_path / "none/clean.jsonl", *dry)
    with pytest.raises(RecipeError, match=r"none/clean\.jsonl is not there: ") as caught:
        CliRunner().invoke(app, absent, catch_exceptions=False)
    assert "lora" not in str(caught.value), "the command that is named would refuse it"
    assert [p.name for p in tmp_path.iterdir()] == ["clean.jsonl"]


def test_a_recipe_that_names_every_section_says_nothing_by_default_ones(base: Path, tmp_path: Path) -> None:
    recipe, file = tmp_path / "recipe.toml", tmp_path / "claen.jsonl"
    recipe.write_text(recipe_to_toml(load_recipe("quickstart/cold_start")))  # as a report does
    words = ["sft", str(recipe), *sft(base, tmp_path / "run", "--demonstrations", file)[2:]]
    with pytest.raises(RecipeError, match=r"claen\.jsonl is not there: name one"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    made = cold_start(tmp_path, tmp_path / "cold", str(recipe), (), name="cold start", demos=file)
    assert "demos.kind=teacher" in made.job.words
    said = ["demos.kind=teacher"]
    assert names_demos(load_recipe(recipe, said), said)
    recipe.write_text(recipe_to_toml(load_recipe("quickstart/cold_start", ["demos.failed_share=0.5"])))
    assert names_demos(load_recipe(recipe), ())
    recipe.write_text('[demos]\nkind = "teacher"\n')
    assert names_demos(load_recipe(recipe), ())


def test_where_the_recipe_says_what_they_are_made_of_they_are_made(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "new/made.jsonl"
    words = sft(base, tmp_path / "run", "demos.kind=teacher", "--demonstrations", file)
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert len(file.read_text().splitlines()) == 2
    beside = sft(base, tmp_path / "other")
    assert CliRunner().invoke(app, beside, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "other-demonstrations.jsonl").is_file()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is there")
def test_nothing_is_made_for_a_training_that_cannot_be_here(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cuda"):
        CliRunner().invoke(app, sft(base, tmp_path / "run", "compute.device=cuda"), catch_exceptions=False)
    assert not list(tmp_path.glob("run-demonstrations*"))


def test_what_was_begun_or_made_before_is_gone_on_with(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "made.jsonl"
    demos = ["demos", "quickstart/cold_start", *FEW, f"model.path={base}", "--out", str(file)]
    assert CliRunner().invoke(app, demos, catch_exceptions=False).exit_code == 0
    made = file.read_bytes()
    file.unlink()  # the note of what made it is there
    words = sft(base, tmp_path / "run", "--demonstrations", file)
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert file.read_bytes() == made


BAD = [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}, {"none": 1}]


@pytest.mark.parametrize("command", ["sft", "demos"])
def test_what_purify_left_is_not_to_be_removed(
    base: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source.jsonl").write_text("".join(json.dumps(one) + "\n" for one in BAD))
    purified = CliRunner().invoke(app, ["purify", "source.jsonl", "-o", "clean.jsonl", "--no-audit"])
    assert purified.exit_code
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert {"clean.jsonl.partial", "clean.jsonl.partial.json"} <= before.keys()
    words = (
        sft(base, tmp_path / "run", "--demonstrations", "clean.jsonl")
        if command == "sft"
        else ["demos", "quickstart/cold_start", *FEW, f"model.path={base}", "--out", "clean.jsonl"]
    )
    with pytest.raises(
        CheckpointError, match=r"clean\.jsonl\.partial is what `retcon purify … -o clean\.jsonl` had"
    ) as said:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert "--resume" in str(said.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("flag", ["-o", "--report", "--audit", "--dpo"])
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_what_demos_had_made_is_no_output_of_purify(
    tmp_path: Path, flag: str, force: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source.jsonl").write_text(json.dumps(BAD[0]) + "\n")
    Path("sft.jsonl.partial").write_text('{"made_from":{"run":{"seed":0}}}\n')
    others = () if flag == "-o" else ("-o", "clean.jsonl")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    words = ["purify", "source.jsonl", flag, "sft.jsonl", *others, *force]
    with pytest.raises(RecordError, match=r"sft\.jsonl\.partial is what `retcon demos … --out sft\.jsonl` had made"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_file_of_ones_own_beside_it_stays_as_it_is(base: Path, tmp_path: Path) -> None:
    for mine in ('{"messages": []}\n{"cut', "words\n", "[1]\n"):
        (tmp_path / "clean.jsonl.partial").write_text(mine)
        words = sft(base, tmp_path / "run", "demos.kind=teacher", "--demonstrations", tmp_path / "clean.jsonl")
        with pytest.raises(
            CheckpointError, match=r"clean\.jsonl\.partial is no journal of demonstrations.*another file"
        ):
            CliRunner().invoke(app, words, catch_exceptions=False)
        assert (tmp_path / "clean.jsonl.partial").read_text() == mine


@pytest.mark.parametrize("note", ["{", "[]", '{"model": []}', '{"made": {}}'])
def test_a_broken_note_of_what_made_demonstrations_is_refused_by_name(base: Path, tmp_path: Path, note: str) -> None:
    file = make_demonstrations(base, tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl.recipe.json").write_text(note)
    words = sft(base, tmp_path / "run", "--demonstrations", file)
    with pytest.raises(CheckpointError, match=r"d\.jsonl\.recipe\.json is broken .*: remove it and"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_fault_in_comparing_with_the_note_is_not_told_as_the_notes(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told so removes demonstrations that took hours."""
    file = make_demonstrations(base, tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl.recipe.json").write_text("{}")
    monkeypatch.setattr(demonstrations, "differing", {}.__getitem__)
    with pytest.raises(TypeError):
        CliRunner().invoke(app, sft(base, tmp_path / "run", "--demonstrations", file), catch_exceptions=False)
