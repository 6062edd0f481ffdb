"""What a vLLM server says over HTTP, without a model: for tests of what asks one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retcon.chat.tokenizer import ByteTokenizer
from servers.answering import Answer, Asked, Server

TOKENIZER = ByteTokenizer()


@dataclass
class VLLM:
    """What a vLLM server answers: of every prompt the last id again and again, up to an id that stops it. about: of
    what it says of itself. weights: the version that it has; loaded: folders that it was given; updating: whether an
    update has begun. adapters: those that it has, and where they were; runtime: whether it takes any. down: whether it
    breaks off. answers: to requests for tokens, in place of its own, in order. paused: whether it was told to wait;
    lost: paths whose next request does not arrive. holds: a path whose first request, once `begun`, is answered when
    `answered` is set."""

    about: dict[str, Any] = field(default_factory=dict)
    weights: str = "default"
    loaded: list[str] = field(default_factory=list)
    updating: bool = False
    adapters: dict[str, str] = field(default_factory=dict)
    runtime: bool = True
    down: bool = False
    answers: list[Answer] = field(default_factory=list)
    paused: bool = False
    lost: set[str] = field(default_factory=set)
    holds: str = ""

    def __post_init__(self) -> None:
        self._running, self.begun, self.answered = threading.Event(), threading.Event(), threading.Event()
        if not self.paused:
            self._running.set()

    def __call__(self, asked: Asked) -> Answer:
        path = asked.path.partition("?")[0]
        if self.down or path in self.lost:
            self.lost.discard(path)
            return Answer(status=None)
        if path in ("/pause", "/resume"):
            self.paused = path == "/pause"
            (self._running.clear if self.paused else self._running.set)()
        if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            return self.adapter(path, asked.body)
        if path == self.holds and asked.body and not self.begun.is_set():
            self.begun.set()
            self.answered.wait(30)
        if path == "/inference/v1/generate" and not asked.body:
            return Answer({"error": {"message": "a field is missing"}}, 400)
        if path == "/inference/v1/generate":
            self._running.wait(20)  # one that is paused takes requests, and answers them once it goes on
        if path == "/inference/v1/generate" and asked.body["model"] not in {self.said_id(), *self.adapters}:
            return Answer({"error": {"message": f"The model {asked.body['model']} does not exist."}}, 404)
        if path == "/inference/v1/generate":
            return self.answers.pop(0) if self.answers else self.tokens(asked.body)
        if path in ("/start_weight_update", "/finish_weight_update"):
            if self.updating == (path == "/start_weight_update"):
                return Answer(
                    {"error": {"message": f"{path}: an update is {'' if self.updating else 'not '}active"}}, 500
                )
            self.updating = not self.updating
        if path == "/update_weights":
            assert list(Path(asked.body["update_info"]["folder"]).glob("*.safetensors"))
            self.loaded.append(asked.body["update_info"]["folder"])
        if path == "/finish_weight_update":
            self.weights = asked.body["weight_version"]
        return Answer(self.said().get(path, {}))

    def said_id(self) -> str:
        return str(self.about.get("id", "small"))

    def adapter(self, path: str, body: dict[str, Any]) -> Answer:
        if not self.runtime:
            return Answer({"detail": "Not Found"}, 404)
        if "lora_name" not in body:
            return Answer({"error": {"message": "a field is missing"}}, 400)
        if path.startswith("/v1/unload"):
            del self.adapters[body["lora_name"]]
        else:
            folder = Path(body["lora_path"])
            assert {file.name for file in folder.iterdir()} == {"adapter_model.safetensors", "adapter_config.json"}
            self.adapters[body["lora_name"]] = str(folder)
            self.loaded.append(str(folder))
        return Answer("Success: what vLLM says is a sentence.")

    def said(self) -> dict[str, Any]:
        about = {"version": "0.32.0", "max_model_len": 64, "chunked": False, "backend": "retcon", "id": "small",
                 "device": "cpu", "logprobs": "raw_logprobs", "tokens": None, "rank": 0,
                 "targets": ["q_proj"], "cache": None} | self.about  # fmt: skip
        probe = "def area(r):\n    return 3.14 * r**2  # Größe 東京\n"
        return {
            "/version": {"version": about["version"]},
            "/v1/models": {
                "data": [
                    {"id": about["id"], "max_model_len": about["max_model_len"], "root": "/small", "parent": None},
                    *({"id": name, "root": at, "parent": about["id"]} for name, at in self.adapters.items()),
                ]
            },
            "/tokenize": {"tokens": about["tokens"] or TOKENIZER.encode(probe)},
            "/weight_info": {"weight_version": self.weights},
            "/server_info": {
                "vllm_config": {
                    "device_config": {"device": about["device"]},
                    "scheduler_config": {"enable_chunked_prefill": about["chunked"]},
                    "model_config": {"logprobs_mode": about["logprobs"]},
                    "weight_transfer_config": {"backend": about["backend"]},
                    "cache_config": about["cache"],
                    "lora_config": {"max_lora_rank": about["rank"], "target_modules": about["targets"]}
                    if about["rank"]
                    else None,
                }
            },
        }

    def tokens(self, body: dict[str, Any]) -> Answer:
        params = body["sampling_params"]
        ids = [(params.get("allowed_token_ids") or body["token_ids"][-1:])[0]] * params["max_tokens"]
        prompt = [None, *({str(i): {"logprob": -float(i)}} for i in body["token_ids"][1:])]
        choice = {
            "token_ids": ids,
            "finish_reason": "length",
            "logprobs": {"content": [{"token_id": i, "logprob": -float(i)} for i in ids]},
            "weight_versions": [{"version": self.weights, "start": 0, "end": len(ids)}],
        }
        return Answer({"choices": [choice], "prompt_logprobs": prompt if "prompt_logprobs" in params else None})


def tokens_asked(server: Server) -> list[dict[str, Any]]:
    bodies = (asked.body for asked in server.asked if asked.path.endswith("/generate"))
    return [body for body in bodies if body]
