#!/usr/bin/env bash
# smolagents x tool-call ids of OpenAI's API: a turn with several calls.
#
# One would guess: what an agent sends back of a model's turn is that turn, so that at temperature 0 the same replies give the
# same conversation, whatever ids the server draws for the calls.
# What happens: ToolCallingAgent sorts the calls and their results by id, as text. OpenAI's and vLLM's ids are random, so the
# order of the calls in the history is random, too: runs with the same replies send different second prompts. With
# ids that count (`call_9`, `call_10`) turns change from the tenth call on. Nothing is lost: each result stays beside its call.
# Why it matters: an evaluation at temperature 0 does not repeat, and no seed helps, as what the model reads depends on ids that
# the server draws. The model, and what is trained on the conversation, sees calls in another order than it made them in.
# Source: smolagents/agents.py, ToolCallingAgent.process_tool_calls: `for k in sorted(parallel_calls.keys())`.
# Exits non-zero where this has changed.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q "smolagents[openai]==1.26.0" "openai==3.54.0" >&2
cd "$dir"
cat >"$dir/run.py" <<'PY'  # a file, as smolagents reads the tool's source
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

print(*(f"{name} {version(name)}" for name in ("smolagents", "openai")))


@tool
def look_up(word: str) -> str:
    """Looks a word up.

    Args:
        word: the word
    """
    return f"<{word}>"


def call(id, name, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def second_prompt(ids):
    """What the agent sends after a turn that looks up one, two and three, in this order."""
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
            calls = [call(id, "look_up", word=word) for id, word in zip(ids, ("one", "two", "three"))]
            if len(asked) > 1:
                calls = [call("last", "final_answer", answer="done")]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            body = {"id": "r", "object": "chat.completion", "created": 0, "model": "m",
                    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model = OpenAIServerModel("m", api_base=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", temperature=0)
    ToolCallingAgent([look_up], model, max_steps=3, verbosity_level=0).run("Look three words up.")
    server.shutdown()
    text = json.dumps(asked[1])
    after = text[text.index("Calling tools:"):]
    words = sorted(("one", "two", "three"), key=lambda word: after.index(f"'word': '{word}'"))
    results = sorted(("one", "two", "three"), key=lambda word: after.index(f"<{word}>"))
    return words, results


for ids, order in ((("call_a", "call_b", "call_c"), ["one", "two", "three"]),
                   (("call_b", "call_c", "call_a"), ["three", "one", "two"]),
                   (("call_8", "call_9", "call_10"), ["three", "one", "two"])):
    words, results = second_prompt(ids)
    print(f"ids {', '.join(ids)} of one, two, three: sent back as {', '.join(words)}; results {', '.join(results)}")
    assert words == results == order, "smolagents keeps the model's order now"
PY
"$dir/venv/bin/python" -W ignore "$dir/run.py"
