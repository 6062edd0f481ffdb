"""Run folders and checkpoints: what loads them, and what happens when a disk is full or a folder is not what it was."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from retcon.chat.opening import open_chat
from retcon.chat.template import read_template
from retcon.chat.tokenizer import load_tokenizer
from retcon.core.errors import CheckpointError, RecordError, TaskWarning
from retcon.models.locating import model_folder
from retcon.models.placing import start_model
from retcon.train.sft import run_sft
from retcon.train.trainer import TokenizerFiles
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
SHORT = {"steps": 4, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, `demonstrations.jsonl` and a finished `run`."""
    folder = tmp_path_factory.mktemp("checkpoints")
    make_demonstrations(make_base(folder / "base"), folder / "demonstrations.jsonl")
    train(folder, folder / "run")
    return folder


def train(world: Path, out: Path, **sft: object) -> Path:
    recipe = small_recipe(world / "base", sft={**SHORT, **sft})
    return run_sft(recipe, world / "demonstrations.jsonl", out)


@pytest.fixture
def unfinished(world: Path, tmp_path: Path) -> Path:
    """A copy of the run as it was after its last checkpoint, before the end."""
    shutil.copytree(world / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/final")
    return tmp_path / "run"


def test_transformers_loads_a_checkpoint_unchanged(world):
    for folder in (world / "run/final", world / "run/checkpoints/step-000004"):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert model.dtype == torch.float32
        text = "print(12345) and a day"
        assert tokenizer(text).input_ids == load_tokenizer(world / "base").encode(text)
        assert tokenizer.apply_chat_template([{"role": "user", "content": "go"}], tokenize=False).startswith("<|im_")
    assert json.loads((world / "run/checkpoints/step-000004/trainer.json").read_text())["step"] == 4


@pytest.mark.parametrize(
    ("renamed", "warned"),
    [
        ({}, "no chat template"),  # named by what it has of ChatML
        ({"<|im_start|>": "<start_of_turn>", "<|im_end|>": "<end_of_turn>"}, "no chat template"),
        ({"<|endoftext|>": "<tool_call>"}, ""),  # Qwen's
    ],
)
def test_a_start_without_a_template_is_saved_with_the_one_it_was_asked_through(renamed, warned, tmp_path):
    base, talk = make_base(tmp_path / "base", positions=1024), tmp_path / "talk.jsonl"
    (base / "chat_template.jinja").unlink()
    for file in (base / "tokenizer.json", base / "tokenizer_config.json"):
        text = file.read_text()
        for old, new in renamed.items():
            text = text.replace(old, new)
        file.write_text(text)
    asked = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": "What is 6 times 7?"}]
    talk.write_text(json.dumps({"messages": [*asked, {"role": "assistant", "content": "42"}]}))
    with pytest.warns(TaskWarning, match=warned) if warned else nullcontext():
        out = run_sft(small_recipe(base, sft={"steps": 1, "batch": 1}), talk, tmp_path / "run")
    for messages in (asked, asked[1:]):
        chats = [open_chat(folder) for folder in (base, out)]
        ids = [
            [i for one in chat.render_prompt([tuple(m.values()) for m in messages]) for i in one.ids] for chat in chats
        ]
        saved = AutoTokenizer.from_pretrained(out)
        theirs = saved.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ids == [theirs, theirs]


def test_the_two_newest_checkpoints_are_kept(world, tmp_path):
    train(world, tmp_path / "run", checkpoint_every=1)
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step-000003", "step-000004"]


def test_an_older_checkpoint_that_is_a_link_is_let_go_of_and_what_it_leads_to_stays(world, tmp_path):
    """Whoever moves one to another disk leaves a link in its place."""
    place, moved = tmp_path / "run/checkpoints/step-000001", tmp_path / "moved"

    def move(line):
        if line["step"] == 1:
            place.rename(moved)
            place.symlink_to(moved)

    recipe = small_recipe(world / "base", sft={**SHORT, "checkpoint_every": 1})
    final = run_sft(recipe, world / "demonstrations.jsonl", tmp_path / "run", on_step=move)
    assert (final / "model.safetensors").read_bytes() == (world / "run/final/model.safetensors").read_bytes()
    assert sorted(p.name for p in place.parent.iterdir()) == ["step-000003", "step-000004"]
    assert (moved / "model.safetensors").is_file()


def test_a_full_disk_keeps_what_was_saved(zygote, world, unfinished):
    """The system refuses to write files beyond a size, as a full disk does, while the last model is saved."""
    run = unfinished
    shutil.rmtree(run / "checkpoints/step-000004")
    before = {p.relative_to(run): p.read_bytes() for p in (run / "checkpoints").rglob("*") if p.is_file()}
    limit = (world / "base/model.safetensors").stat().st_size // 2
    recipe = small_recipe(world / "base", sft=SHORT)
    events = dict(zygote.run("sft", recipe, world / "demonstrations.jsonl", run, limit=limit))
    assert events["exit"] == "1"
    assert str(run / "checkpoints/step-000004") in events["error"]
    assert "MiB are free" in events["error"]
    assert "run the same command again" in events["error"]
    assert {p.relative_to(run): p.read_bytes() for p in (run / "checkpoints").rglob("*") if p.is_file()} == before
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-000002"]
    final = train(world, run)  # there is room again
    assert (final / "model.safetensors").read_bytes() == (world / "run/final/model.safetensors").read_bytes()


def test_what_a_kill_left_half_written_is_removed(world, unfinished):
    (unfinished / "checkpoints/.partial-step-000006").mkdir()
    (unfinished / "checkpoints/.partial-step-000006/model.safetensors").write_bytes(b"half")
    (unfinished / ".partial-metrics.jsonl").write_text("half")
    train(world, unfinished)
    assert not list(unfinished.rglob(".partial-*"))


def test_an_incomplete_checkpoint_is_passed_over(world, unfinished):
    (unfinished / "checkpoints/step-000004/trainer.json").unlink()
    final = train(world, unfinished)
    assert (final / "model.safetensors").read_bytes() == (world / "run/final/model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.safetensors", "trainer.json"])
def test_a_broken_checkpoint_is_named(world, unfinished, name):
    (unfinished / "checkpoints/step-000004" / name).write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"step-000004 cannot be read.*delete that folder"):
        train(world, unfinished)


@pytest.mark.parametrize("line", ["{}", '{"note": "stopped for the night"}', '{"step": null}'])
def test_a_line_of_metrics_that_is_of_no_step_is_named(world, unfinished, line):
    with (unfinished / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 5: not a step's metrics"):
        train(world, unfinished)


def edit(run: Path, **values: object) -> None:
    file = run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_run_of_another_format_version(world, unfinished):
    edit(unfinished, format=2, version="9.1")
    with pytest.raises(CheckpointError, match=r"format 2 \(retcon 9\.1\).*format 1"):
        train(world, unfinished)


def test_a_run_of_another_kind(world, unfinished):
    edit(unfinished, kind="rl")
    with pytest.raises(CheckpointError, match="kind 'rl', not 'sft'"):
        train(world, unfinished)


def test_another_recipe_is_identified_by_its_keys(world, unfinished):
    with pytest.raises(CheckpointError, match=r"sft\.lr was 0\.01, is 0\.5; sft\.steps was 4, is 9"):
        train(world, unfinished, lr=0.5, steps=9)


def test_a_run_of_a_version_with_fewer_keys_goes_on(world, unfinished):
    """As long as what is new has its default, which does what was done before."""
    recipe = json.loads((unfinished / "run.json").read_text())["recipe"]
    del recipe["sft"]["warmup"], recipe["lora"]
    edit(unfinished, recipe=recipe)
    with pytest.raises(CheckpointError, match=r"recipe: sft\.warmup was None, is 0\.5\. Use"):
        train(world, unfinished, warmup=0.5)
    assert (train(world, unfinished) / "model.safetensors").is_file()


BROKEN = ["{", "[]", "{}", '{"format": 1}', '{"format": 1, "kind": "sft", "recipe": 3}', "[" * 100_000]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_run_folder(world, unfinished, content):
    (unfinished / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"run\.json is broken"):
        train(world, unfinished)


def test_a_folder_of_something_else_is_left_alone(world, tmp_path):
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(CheckpointError, match=r"not empty and has no run\.json"):
        train(world, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_missing_checkpoint_names_the_nearest(world):
    with pytest.raises(CheckpointError, match=r"no model .*step-000005.*did you mean 'step-000004'"):
        model_folder(world / "run/checkpoints/step-000005")
    assert model_folder(world / "run") == world / "run/final"


def test_scratch_is_seeded(world, monkeypatch):
    monkeypatch.setattr("retcon.models.locating.BASE", world / "base")
    state = torch.get_rng_state()
    one, same, other = (start_model("scratch", seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


def test_a_trained_model_has_all_templates_of_its_start_unless_it_learnt_another(tmp_path: Path) -> None:
    more = tmp_path / "start" / "additional_chat_templates"
    more.mkdir(parents=True)
    (more / "tool_use.jinja").write_text("{{ tools }}")
    for out, template in (("same", ""), ("other", "{{ messages }}")):
        (tmp_path / out).mkdir()
        TokenizerFiles(tmp_path / "start", template).copy_to(tmp_path / out)
    assert read_template(tmp_path / "same").text == "{{ tools }}"
    assert read_template(tmp_path / "other").text == "{{ messages }}"
