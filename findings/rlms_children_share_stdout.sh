#!/usr/bin/env bash
# rlms x threads: what a child of rlm_query_batched sees of its own program.
#
# One would guess: each child has an interpreter of its own, so a program's print() comes back to the child that ran it; the
# capture of its output is called thread-safe.
# What happens: children run in threads of one process, and each REPL replaces sys.stdout and the working folder, which all
# threads share, under a lock of its own. Where two programs overlap, as they do whenever one waits for llm_query, one child
# reads what the other printed, and that one reads nothing. Two letters are read below, one child each, and the answers of a
# model that says what it was shown are "nothing" and the other's letter. There is no error.
# Why it matters: children of a recursive language model answer about each other's parts, so scores fall as more of them run
# at a time (four by default), and training on these rollouts learns from observations of another rollout.
# Source: rlm/environments/local_repl.py, _capture_output and _temp_cwd: `self._lock` of each REPL around `sys.stdout = …`.
# Exits non-zero where this has changed.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q "rlms==0.1.3" "openai==3.54.0" >&2
cd "$dir"
"$dir/venv/bin/python" -W ignore - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from rlm import RLM

print(*(f"{name} {version(name)}" for name in ("rlms", "openai")))
LETTERS = ("a letter from Ada", "a letter from Robert")  # a child is shown the length of its context
ada_began, both, ada_goes_on = (threading.Event() for _ in range(3))


def reply(messages):
    text = "\n".join(str(message["content"]) for message in messages)
    if "llm_query_batched" not in str(messages[0]["content"]):  # a call of llm_query, in the order of a busy server
        if LETTERS[0] in text:
            ada_began.set()
            both.wait(30)
        else:
            both.set()
            ada_goes_on.wait(30)
        return "ok"
    if "Read the letters." in text:
        return f"```repl\nanswer['content'] = repr(rlm_query_batched({list(LETTERS)}))\nanswer['ready'] = True\n```"
    ada = f"{len(LETTERS[0])} total characters" in text
    if not any(message["role"] == "assistant" for message in messages):
        ada or ada_began.wait(30)
        return "```repl\nllm_query(context)\nprint('I read', context)\n```"
    seen = [letter for letter in LETTERS if f"I read {letter}" in text]
    if ada:
        ada_goes_on.set()
    return f"```repl\nanswer['content'] = {' and '.join(seen) or 'nothing'!r}\nanswer['ready'] = True\n```"


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        message = {"role": "assistant", "content": reply(messages)}
        body = {"id": "r", "object": "chat.completion", "created": 0, "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
backend = {"model_name": "m", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none"}
model = RLM(backend="openai", backend_kwargs=backend, environment="local", max_depth=2, verbose=False)
found = model.completion("two letters", root_prompt="Read the letters.").response
print("prompts:", list(LETTERS))
print("answers:", found)
assert found == repr(["nothing", LETTERS[0]]), "each child reads its own output now"
PY
