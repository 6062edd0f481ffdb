"""Files of `retcon purify` in TRL's trainers of records: it trains, and on the ids that we do: `make integration`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL, which `make integration` installs")

import datasets
import trl
from transformers import AutoTokenizer

from foreign import FAILED, FIXED
from foreign.steps import TRACEBACK
from retcon.chat.opening import open_chat
from retcon.core.types import ToolSpec
from retcon.purify.offline import Repairer
from retcon.train.datasets.demonstrations import read_samples
from retcon.train.datasets.preferences import read_preferences
from retcon.transcripts.purification import Assignment, FileJob
from training import make_base

pytestmark = pytest.mark.filterwarnings("default")  # TRL's own
Record = dict[str, Any]


def tool(name: str, **properties: object) -> Record:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"Calls {name}.", "parameters": schema}}


def said(text: str, number: int | None = None, code: str = "", **more: object) -> Record:
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    calls = [] if number is None else [{"id": f"c{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {}), **more}


def record(tools: list[Record], *before: Record, **more: object) -> Record:
    error = TRACEBACK.format(line=2, type="AttributeError", message="module 'math' has no attribute 'sqroot'")
    return {"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "The root of 16?"}, *before,
        said("We take it.", 1, FAILED, **more), {"role": "tool", "tool_call_id": "c1", "content": error},
        said("We take it.", 2, FIXED, **more), {"role": "tool", "tool_call_id": "c2", "content": "4.0"},
        said("4", **more),
    ], "tools": tools}  # fmt: skip


PYTHON, WEATHER = (
    tool("python", code={"type": "string"}),
    tool("weather", city={"type": "string"}, days={"type": "integer"}),
)
EARLIER = (said("I look.", 0, "print(1)"), {"role": "tool", "tool_call_id": "c0", "content": "1"})
RECORDS = [record([PYTHON]), record([WEATHER, PYTHON], *EARLIER), record([PYTHON], reasoning_content="A root will do.")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with Qwen3's template."""
    folder = make_base(tmp_path_factory.mktemp("records") / "base", positions=4096)
    template = files("trl").joinpath("chat_templates/qwen3.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def trained(kind: str, model: Path, folder: Path, file: Path) -> Any:
    """TRL's trainer after a step over a file."""
    rows = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder / "cache"))
    settings = {"output_dir": str(folder / kind), "max_steps": 1, "per_device_train_batch_size": 1, "report_to": [],
                "use_cpu": True, "save_strategy": "no", "max_length": None}  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = getattr(trl, f"{kind}Config")(**settings)
    trainer = getattr(trl, f"{kind}Trainer")(str(model), args=config, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert trainer.state.global_step == 1
    return trainer


def test_pairs_and_records_with_tools_are_the_same_ids_in_trl(model: Path, tmp_path: Path) -> None:
    """But for the line end after the last turn, which is the template's, and which no model writes."""
    source, clean, pairs = (tmp_path / f"{name}.jsonl" for name in ("records", "clean", "pairs"))
    source.write_text("".join(json.dumps(one) + "\n" for one in RECORDS), encoding="utf-8")
    work = Assignment([source], clean, False, [clean.name], Repairer(), pairs=pairs)
    (count,) = FileJob(work)(lambda *_: None, lambda: False)
    assert (count.shallow, count.deep) == (3, 0)
    chat = open_chat(model, tools=[ToolSpec("other")])
    line = chat.tokenizer.encode("\n")

    rows = trained("DPO", model, tmp_path, pairs).train_dataset
    ours = read_preferences(pairs, chat, vocabulary=chat.tokenizer.size)
    for row, pair in zip(rows, ours, strict=True):
        assert row["prompt_ids"] + row["chosen_ids"] == [*pair.chosen.ids, *line]
        assert row["prompt_ids"] + row["rejected_ids"] == [*pair.rejected.ids, *line]
        assert '"name": "python", "description"' in chat.tokenizer.decode(row["prompt_ids"])

    rows = trained("SFT", model, tmp_path, clean).train_dataset
    samples = read_samples(clean, chat, vocabulary=chat.tokenizer.size)
    assert [list(row["input_ids"]) for row in rows] == [[*sample.ids, *line] for sample in samples]
    assert "<think>\nA root will do.\n</think>\n\nWe take it." in chat.tokenizer.decode(samples[2].ids)
