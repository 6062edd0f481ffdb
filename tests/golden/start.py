"""Makes `start`, the tiny model that the golden runs train: it calls in vain or not, and answers 1 or 2 at random.

    python tests/golden/start.py

Its weights are committed, as training them elsewhere would give others. Every run's golden values change with them.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config

import retcon

HERE = Path(__file__).resolve().parent
QUESTIONS = [f"{n}: 1 or 2?" for n in range(8)]
FAILING = {
    "print(a)": "NameError: name 'a' is not defined",
    "print(b)": "NameError: name 'b' is not defined",
    "x = 3\nprint(x - a)": "NameError: name 'a' is not defined",
}
WORKING = {"print(1)": "1", "print(2)": "2", "x = 3\nprint(x - 1)": "2"}
SETTINGS = ("sft.steps=500", "sft.batch=16", "sft.lr=1e-2", "compute.device=cpu", "compute.dtype=float32")


def demonstrations(count: int) -> list[dict[str, Any]]:
    """Conversations of a question, one call or a failed one and another, and an answer."""
    draw = random.Random(0)

    def called(programs: dict[str, str]) -> list[dict[str, Any]]:
        code = draw.choice(list(programs))
        call = {"id": "c", "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": code})}}
        result = {"role": "tool", "tool_call_id": "c", "content": programs[code]}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}, result]

    def conversation() -> dict[str, Any]:
        tried = called(FAILING) * draw.choice((0, 1, 1, 1)) + called(WORKING) * draw.choice((0, 1, 1, 1))
        asked = {"role": "user", "content": draw.choice(QUESTIONS)}
        return {"messages": [asked, *tried, {"role": "assistant", "content": draw.choice("12")}]}

    return [conversation() for _ in range(count)]


def make_tokenizer(texts: Sequence[str], folder: Path) -> int:
    """The packaged model's, with bytes and the words of these texts alone. Returns the number of its tokens."""
    from tokenizers import Tokenizer

    source = next(Path(retcon.__file__).parent.rglob("base/tokenizer.json")).parent
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    packaged = Tokenizer.from_file(str(source / "tokenizer.json"))
    values = json.loads((source / "tokenizer.json").read_bytes())
    vocabulary: dict[str, int] = values["model"]["vocab"]
    used = {token for text in texts for token in packaged.encode(text).tokens}
    kept = [token for token in vocabulary if len(token) == 1 or token in used or token.startswith("<|")]
    values["model"]["vocab"] = {token: n for n, token in enumerate(kept)}
    for token in values["added_tokens"]:
        token["id"] = kept.index(token["content"])
    (folder / "tokenizer.json").write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    return len(kept)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        base, trained, lines = Path(place) / "base", Path(place) / "trained", Path(place) / "demonstrations.jsonl"
        base.mkdir()
        rows = [json.dumps(row) + "\n" for row in demonstrations(600)]
        lines.write_text("".join(rows), encoding="utf-8")
        words = [
            *QUESTIONS, *FAILING, *WORKING, *FAILING.values(), "<|im_start|>user\n", "assistant\n", "```python\n```",
        ]  # fmt: skip
        words += ["tool\n", "system\n", "\n```"]
        size = make_tokenizer(words, base)
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=512, tie_word_embeddings=True,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(base)
        command = ["sft", "quickstart/cold_start", f"model.path={base}", *SETTINGS, "run.threads=1"]
        paths = ["--demonstrations", str(lines), "--out", str(trained)]
        subprocess.run([sys.executable, "-m", "retcon", *command, *paths], check=True)
        weights = load_file(trained / "final" / "model.safetensors")
        shutil.rmtree(HERE / "start", ignore_errors=True)
        (HERE / "start").mkdir()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(base / name, HERE / "start" / name)
        save_file({name: value.bfloat16() for name, value in weights.items()}, HERE / "start" / "model.safetensors")


if __name__ == "__main__":
    main()
