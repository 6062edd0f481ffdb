"""What a model's name means, and what is found out about a model folder before it is used."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from ggufs import tiny, write_gguf
from retcon.chat.opening import open_chat
from retcon.cli.app import app
from retcon.core.errors import CheckpointError
from retcon.engine.kinds.vllm import dtype_of
from retcon.models.checking import check_model_folder
from retcon.models.gguf import convert_gguf
from retcon.models.loading import empty_model, load_config, load_model
from retcon.models.locating import BASE, HOME, locate, models_folder
from retcon.rollout.lengths import UNKNOWN_CONTEXT, context_of

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder. Not to be changed."""
    place = tmp_path_factory.mktemp("models")
    folder = place / "whole"
    folder.mkdir()
    convert_gguf(write_gguf(place / "tiny.gguf", tiny("llama")), folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_packaged_model_with_twice_the_layers_computes_what_it_does(home: Path) -> None:
    folder = locate("base-deep")
    assert folder.is_relative_to(home)
    base, deep = load_model(BASE), load_model(folder)
    ids = torch.arange(5, 60)[None]
    assert torch.equal(deep(ids).logits, base(ids).logits)
    assert deep.config.num_hidden_layers == 2 * base.config.num_hidden_layers
    assert deep.num_parameters() > 1.5 * base.num_parameters()
    deep(ids).logits.sum().backward()
    idle = deep.get_parameter("model.layers.1.mlp.down_proj.weight")
    assert not idle.any()
    assert idle.grad is not None
    assert idle.grad.any(), "it learns"


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_models_are_kept_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models_folder() == tmp_path / "home" / "models"
    monkeypatch.delenv(HOME)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert models_folder() == tmp_path / "cache" / "retcon" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models_folder() == Path.home() / ".cache" / "retcon" / "models"


def test_a_folder_is_itself(folder: Path) -> None:
    assert locate(folder) == folder
    assert locate(str(folder)) == folder


def test_a_run_means_its_final_model_once_it_has_one(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="run is a run that has no final/ yet: the command that began it goes on"):
        locate(run)
    folder.rename(run / "final")
    assert locate(run) == run / "final"


def test_a_gguf_file_is_converted_once(whole: Path, tmp_path: Path) -> None:
    file = Path(shutil.copyfile(whole.parent / "tiny.gguf", tmp_path / "my model.gguf"))
    found = locate(file)
    made = (found / "model.safetensors").stat().st_mtime_ns
    assert locate(str(file)) == found
    assert (found / "model.safetensors").stat().st_mtime_ns == made
    write_gguf(file, tiny("qwen3"))
    assert json.loads((locate(file) / "config.json").read_text())["model_type"] == "qwen3"


def test_nothing_is_left_of_a_conversion_that_failed(tmp_path: Path, home: Path) -> None:
    file = write_gguf(tmp_path / "odd.gguf", tiny("llama"), pre="unheard-of")
    with pytest.raises(CheckpointError, match="unheard-of"):
        locate(file)
    assert [p for p in (home / "models").iterdir() if p.is_dir()] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm2-135m", "has not been fetched: run `retcon model get smollm2-135m`"),
        ("smollm2-360m", r"no model smollm2-360m \(did you mean 'smollm2-135m'\?\)"),
        ("acme/thing", "if it is a model of the hub, run `retcon model get acme/thing`"),
        ("acme/thing@v1.0", "if it is a model of the hub, run `retcon model get acme/thing@v1.0`"),
        ("runs/modell", r"no model runs/modell \(did you mean 'model'\?\)"),
        ("localhost:8000/v1", "the URL of a server is written with http:// before it: http://localhost:8000/v1"),
        ("http://127.0.0.1:8000/v1", "is a server's URL, and this needs the model itself"),
        ("scratch", "scratch is for `retcon sft` alone"),
        ("xyzzy", r"neither a folder nor a name of `retcon model list`; models in /.*: none"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_to_do(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        locate(name)


def test_a_file_that_is_no_model_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is a file: a model is a folder"):
        locate(folder / "config.json")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages[1:] %}{{ m.content }}{% endfor %}", "leaves out what the user says"),
        ("{{ messages | nonsense }}", "tokenizer_config.json: the chat template .*: No filter named 'nonsense'"),
        ("{% if %}", "tokenizer_config.json: the chat template is not valid Jinja"),
        ("{{ '{1}'.format(messages) }}", "tokenizer_config.json: the template refuses a conversation: .*index"),
    ],
)
def test_a_template_that_cannot_ask_is_refused(template: str, said: str, folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(CheckpointError, match=said):
        check_model_folder(folder)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}{{ tools }}", "leaves out the system"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
            "{{ m.content }}{% endfor %}{{ tools }}",
            "refuses a system prompt: no system here",
        ),
        (None, "the folder has no chat template"),
    ],
)
def test_a_template_without_a_system_prompt_is_a_warning(template: str | None, said: str, folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=template)
    assert any(said in warning for warning in check_model_folder(folder).warnings)


def test_without_a_template_it_is_reported_how_the_model_is_asked(tmp_path: Path) -> None:
    base = Path(shutil.copytree(BASE, tmp_path / "base"))
    (base / "chat_template.jinja").unlink(missing_ok=True)
    (base / "tokenizer_config.json").write_text("{}")
    text = (base / "tokenizer.json").read_text()
    (base / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<tool_call>"))
    assert any("prompts are rendered in the style " in said for said in check_model_folder(base).warnings)


def test_a_tokenizer_of_another_vocabulary_is_refused(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"more{n}" for n in range(10)])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="has 273 tokens and the model 263: they are not of one model"):
        check_model_folder(folder)


@pytest.mark.parametrize(("ends", "said"), [([2, 5000], "5000"), ("</s>", "</s>"), (-1, "-1"), ([{}], "{}")])
def test_an_end_that_the_tokenizer_lacks_is_refused(ends: object, said: str, folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=ends)
    with pytest.raises(CheckpointError, match=f"ends a text with id {said}, which its tokenizer does not have"):
        check_model_folder(folder)


def test_the_command_prints_what_was_found_and_fails_for_a_broken_model(folder: Path) -> None:
    (folder / "source.json").write_text('{"source": "acme/tiny", "licence": "MIT"}')
    done = CliRunner().invoke(app, ["model", "check", str(folder)])
    assert done.exit_code == 0, done.output
    rows = dict(re.findall(r"^(source|licence|architecture|tokenizer) +(.+?) *$", done.stdout, re.MULTILINE))
    assert (rows["source"], rows["licence"], rows["tokenizer"]) == ("acme/tiny", "MIT", "263 tokens")
    assert rows["architecture"].startswith("LlamaForCausalLM, ")
    assert "warning: plain English costs it" in done.stderr
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        CliRunner().invoke(app, ["model", "check", str(folder)], catch_exceptions=False)


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{"])
def test_a_file_that_holds_no_object_is_refused_by_name(text: str, folder: Path) -> None:
    (folder / "source.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"source\.json cannot be read"):
        check_model_folder(folder)
    (folder / "config.json").write_text(text)
    assert context_of(folder) == UNKNOWN_CONTEXT, "which is left to whoever loads the model"
    setup: Any = SimpleNamespace(dtype="auto", trained=False)
    for load in (load_config, lambda folder: dtype_of(setup, folder)):
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load(folder)


def test_two_ends_of_text_are_a_warning(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=0)
    assert any("ends a text with '<|im_end|>'" in w for w in check_model_folder(folder).warnings)


def test_weights_that_are_not_finite_or_lack_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(weights | {name: weights[name] / 0}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"the weights of {name} are not all finite"):
        check_model_folder(folder)
    del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"lack 1 tensor of the model, such as {name}"):
        check_model_folder(folder)
    save_file({f"transformer.{key}": value for key, value in weights.items()}, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"lack \d+ tensors .* have \d+ that it has not, such as transformer\.model"
    ):
        check_model_folder(folder)


def test_files_of_weights_that_lack_are_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-1-of-3.safetensors", "b": "model-2-of-3.safetensors", "c": "c.safetensors"}}
    (folder / "model.safetensors").rename(folder / "c.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="lacks 2 files of the 3 with its weights, such as model-1-of-3"):
        load_model(folder)


def test_shards_beside_a_single_file_of_weights_are_warned_of(folder: Path) -> None:
    """The single one is loaded, although transformers wrote the shards later."""
    model = load_model(folder)
    before = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors").is_file()
    with pytest.warns(
        UserWarning, match=r"weights twice: model\.safetensors is loaded.* not the \d+ files of model\.safe"
    ):
        again = load_model(folder)
    assert torch.equal(again.lm_head.weight, before)
    (folder / "model.safetensors").unlink()
    assert torch.equal(load_model(folder).lm_head.weight, before + 1)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("pad_token_id", 1_000_000, "no model can be made of it: AssertionError: Padding_idx"),
        ("hidden_act", "nope", "no model can be made of it: KeyError: 'nope'"),
        ("intermediate_size", -1, "no model can be made of it: RuntimeError: .*negative dimension"),
        ("dtype", "float99", "cannot be read: .*'float99'"),
    ],
)
def test_a_configuration_that_no_model_can_have_is_refused(key: str, value: object, said: str, folder: Path) -> None:
    edit(folder / "config.json", **{key: value})
    with pytest.raises(CheckpointError, match=rf"config\.json:? {said}"):
        empty_model(load_config(folder))
    with suppress(CheckpointError):  # not all of these matter to it
        load_model(folder)


@pytest.mark.parametrize("text", ["[]", "null", '{"model_type": ["llama"]}', '{"text_config": 1}'])
def test_a_configuration_of_another_shape_is_refused_by_what_loads_the_model(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    assert open_chat(folder, style="qwen").prompt("1 + 1?")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: "):
        load_config(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json", "tokenizer.json"])
def test_a_file_that_cannot_be_read_is_named(name: str, folder: Path) -> None:
    (folder / name).write_text("{broken")
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        check_model_folder(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_that_lacks_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        check_model_folder(folder)
