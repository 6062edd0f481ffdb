"""GGUF files become Hugging Face folders that compute and tokenise the same."""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ggufs import KINDS, TOKENS, gguf, tiny, write_gguf
from retcon.chat.template import read_template
from retcon.chat.tokenizer import load_tokenizer
from retcon.core.errors import CheckpointError
from retcon.models.gguf import architectures, convert_gguf, tokenizer_of

pytestmark = pytest.mark.torch
REAL = Path(__file__).parents[4] / "shared" / "data" / "tokenizers"


def converted(tmp_path: Path, kind: str = "llama", *, model: PreTrainedModel | None = None, **fields: Any) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", model or tiny(kind), **fields), folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_computes_what_the_model_did(kind: str, tmp_path: Path) -> None:
    model = tiny(kind)
    again = AutoModelForCausalLM.from_pretrained(converted(tmp_path, kind), dtype=torch.float32)
    ids = torch.randint(0, len(TOKENS), (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)
    assert type(again) is type(model)
    assert again.generation_config.eos_token_id == [2]
    for name in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon"):
        assert getattr(again.config, name, None) == getattr(model.config, name, None), name


def test_quantised_weights_are_what_they_stand_for(tmp_path: Path) -> None:
    model = tiny("llama")
    file = write_gguf(tmp_path / "packed.gguf", model, quantised=("ffn_down",))
    packed = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.0.ffn_down.weight")
    assert packed.tensor_type.name == "Q8_0"
    blocks = packed.data.reshape(-1, 34)  # a float16 and 32 signed bytes
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    expected = (scales * blocks[:, 2:].view(np.int8)).reshape(32, 64)
    (tmp_path / "folder").mkdir()
    convert_gguf(file, tmp_path / "folder")
    got = load_file(tmp_path / "folder" / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].numpy()
    assert np.array_equal(got, expected)
    assert np.abs(got - model.model.layers[0].mlp.down_proj.weight.detach().numpy()).max() < 0.01


def test_digits_are_cut_as_the_file_says(tmp_path: Path) -> None:
    one_by_one = load_tokenizer(converted(tmp_path))
    assert [one_by_one.decode([i]) for i in one_by_one.encode("the 123")] == ["the", " ", "1", "2", "3"]
    (tmp_path / "b").mkdir()
    together = load_tokenizer(converted(tmp_path / "b", pre="gpt-2"))
    assert [together.decode([i]) for i in together.encode("the 123")] == ["the", " ", "12", "3"]


def test_the_tokenizer_knows_its_markup_and_template(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "the 12"}], tokenize=False)
    assert text == "<|im_start|>user\nthe 12<|im_end|>\n"
    assert tokenizer.encode(text)[0] == 1
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("<|im_end|>", "<|im_start|>")
    assert tokenizer.decode(tokenizer.encode("Größe → 東京\t12")) == "Größe → 東京\t12"


def test_of_several_templates_the_one_for_tools_is_there(tmp_path: Path) -> None:
    folder = converted(tmp_path, tokenizer__chat_template__tool_use="{{ tools }}")
    template = read_template(folder)
    assert template is not None
    assert template.text == "{{ tools }}"
    assert AutoTokenizer.from_pretrained(folder).chat_template.keys() == {"default", "tool_use"}


@pytest.mark.parametrize(("name", "pre"), [("qwen3", "qwen2")])
def test_text_is_cut_as_the_real_tokenizer_cuts_it(name: str, pre: str, tmp_path: Path) -> None:
    packed = REAL / name / "tokenizer.json.xz"
    if not packed.is_file():
        pytest.skip(f"no real tokenizer at {packed}")
    definition = lzma.decompress(packed.read_bytes()).decode()
    real = Tokenizer.from_str(definition)
    merges = json.loads(definition)["model"]["merges"]
    tokens = [real.id_to_token(i) for i in range(real.get_vocab_size())]
    added = real.get_added_tokens_decoder()
    ours = tokenizer_of(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
            "tokenizer.ggml.token_type": [
                1 if i not in added else 3 if added[i].special else 4 for i in range(len(tokens))
            ],
        },
        tmp_path / "real.gguf",
    )
    rng = random.Random(0)
    alphabet = "abcXYZ 0123456789\n\t.,'\"(){}<>|/éßø東京🙂́  \r"
    texts = ["".join(rng.choices(alphabet, k=60)) for _ in range(200)] + [
        "I'LL say: they've 12345 apples…\r\n\r\n  <tool_call>\n{\"x\": 1}</tool_call><|im_end|>",
        "def f(x):\n        return x ** 2  # e\u0301",
    ]
    for text in texts:
        assert ours.encode(text).ids == real.encode(text).ids, text


def test_a_tokenizer_beside_the_file_goes_first(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    other = json.loads((folder / "tokenizer.json").read_text())
    other["pre_tokenizer"]["pretokenizers"] = other["pre_tokenizer"]["pretokenizers"][1:]
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    (tmp_path / "second").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "second")
    assert json.loads((tmp_path / "second" / "tokenizer.json").read_text()) == other


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architecture": "qwen4"}, r"architecture is 'qwen4' \(did you mean 'qwen3'\?\); known are .*gemma3, .*llama"),
        ({"pre": "deepseek-llm"}, "tokenizer.ggml.pre is 'deepseek-llm'.* put the model's own tokenizer.json"),
        ({"llama__rope__scaling__type": "dynamic"}, r"its rotations are scaled \(dynamic\); known are linear"),
        (
            {"tokenizer__ggml__model": "plamo2"},
            r"tokenizer is of the kind 'plamo2'; known are 'gpt2' \(byte pairs\), 'llama'",
        ),
        ({"tokenizer__ggml__model": "llama"}, "its tokenizer lacks scores"),
    ],
)
def test_what_is_not_known_is_refused_by_name(fields: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        converted(tmp_path, **fields)


def test_a_refusal_comes_before_torch_and_transformers(tmp_path: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", tiny("llama"), architecture="martian")
    program = (
        "import sys; from retcon.cli.model import check_model\n"
        "from retcon.core.errors import CheckpointError\n"
        "try: check_model(sys.argv[1])\n"
        "except CheckpointError as error: print({'torch', 'transformers'} & set(sys.modules), error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "odd.gguf")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("set() ")
    assert "architecture is 'martian'" in said


def test_architectures_are_those_in_the_tables_of_transformers() -> None:
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    newer = pytest.importorskip("transformers.integrations.gguf.gguf_config_mapping").GGUF_CONFIG_ARCHS
    others = {"general", "tokenizer", "deci", "t5", "umt5"}
    assert set(architectures()) == {*GGUF_CONFIG_MAPPING, *newer} - others


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}  # llama has none
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM .* there is no place for blk\.0\.attn_q_norm"):
        converted(tmp_path, tensors=extra)


def test_a_tensor_that_lacks_is_missed(tmp_path: Path) -> None:
    model = tiny("llama")
    del model.model.layers[1].mlp.up_proj
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM needs model\.layers\.1\.mlp\.up_proj\.weight"):
        convert_gguf(write_gguf(tmp_path / "odd.gguf", model), folder)


SCALED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama3": (
        {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        {},
    ),
    "linear": ({"factor": 4.0}, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 32},
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32,
        },
    ),
}


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_rotations_come_from_the_file(kind: str, tmp_path: Path) -> None:
    parameters, stated = SCALED[kind]
    rope = {"rope_type": kind, "rope_theta": 50000.0, **parameters}
    model = tiny("llama", rope_parameters=rope)
    extra = {}
    if kind == "llama3":
        plain = 1 / 50000.0 ** (torch.arange(0, 8, 2) / 8)
        extra["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    again = AutoModelForCausalLM.from_pretrained(
        converted(tmp_path, "llama", model=model, tensors=extra, **stated), dtype=torch.float32
    )
    ids = torch.randint(0, len(TOKENS), (1, 60), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab", "<user>"]


def test_sentence_pieces_merge_by_score(tmp_path: Path) -> None:
    built = tokenizer_of(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": PIECES,
            "tokenizer.ggml.scores": [0.0] * (len(PIECES) - 4) + [-3.0, -1.0, -2.0, 0.0],
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 6, 4],
            "tokenizer.ggml.bos_token_id": 1,
        },
        tmp_path / "pieces.gguf",
    )
    assert built.encode("ab aé<user>").tokens == ["<s>", "▁ab", "▁a", "<0xC3>", "<0xA9>", "<user>"]
    assert built.decode(built.encode("ab aé").ids) == "ab aé"


def test_word_pieces_are_those_of_bert(tmp_path: Path) -> None:
    built = tokenizer_of(
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "do", "▁,"],
            "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1, 1],
            "tokenizer.ggml.unknown_token_id": 1,
            "tokenizer.ggml.cls_token_id": 2,
            "tokenizer.ggml.seperator_token_id": 3,
        },
        tmp_path / "words.gguf",
    )
    assert built.encode("UNDO, x").tokens == ["[CLS]", "un", "##do", ",", "[UNK]", "[SEP]"]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no GGUF at all", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_a_broken_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"broken\.gguf cannot be read as a GGUF file"):
        convert_gguf(file, tmp_path)


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "short.gguf", tiny("llama"))
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(CheckpointError, match=r"short\.gguf cannot be read as a GGUF file: .* it is truncated"):
        convert_gguf(file, tmp_path)
