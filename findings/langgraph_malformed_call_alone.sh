#!/usr/bin/env bash
# LangGraph x OpenAI's tool calls: a call whose arguments are not JSON.
#
# One would guess: the agent gives the model an error to put right, as it does for arguments that do not fit the tool's schema,
# or raises one.
# What happens: beside a well-formed call it does so ("arguments were malformed or truncated"). Alone, the same call ends the
# agent: the model is not asked again, and the answer is an empty text, without an error or a warning. langchain-openai keeps
# such a call in invalid_tool_calls, and the agent of LangGraph goes on only where tool_calls has one; its repair of the others
# is in the branch after that.
# Why it matters: models that are trained, and small ones, break their JSON now and then, and a reply cut by max_tokens always
# does. The rollout is over and wrong, while in openai-agents 0.24.0 it is a failed call that the model is asked about again, so
# pass rates differ by harness, and the model never learns to put such a call right.
# Source: langchain/agents/factory.py (the edge after the model: no tool_calls, so the end), langchain_openai/chat_models/base.py.
# Exits non-zero where this has changed.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q "langchain==1.4.7" "langchain-openai==1.7.3" "langgraph==1.2.22" "openai==3.54.0" >&2
"$dir/venv/bin/python" -W ignore - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

print(*(f"{name} {version(name)}" for name in ("langchain", "langchain-openai", "langgraph", "openai")))


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return f"<{word}>"


def play(*arguments):
    """A model that calls look_up so in its first turn, and then answers: its number of turns, the results, the answer."""
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
            message = {"role": "assistant", "content": "It is Ada."}
            if len(asked) == 1:
                message = {"role": "assistant", "content": None, "tool_calls": [
                    {"id": f"c{n}", "type": "function", "function": {"name": "look_up", "arguments": one}}
                    for n, one in enumerate(arguments)]}
            ends = "stop" if len(asked) > 1 else "tool_calls"
            body = {"id": "r", "object": "chat.completion", "created": 0, "model": "m",
                    "choices": [{"index": 0, "finish_reason": ends, "message": message}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model = ChatOpenAI(model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
    found = create_agent(model, [look_up]).invoke({"messages": [("user", "Who?")]})["messages"]
    server.shutdown()
    return len(asked), [m.content[-60:] for m in found if m.type == "tool"], found[-1].content


GOOD, UNKNOWN, CUT = '{"word": "Ada"}', '{"wrod": "Ada"}', '{"word": "Ada"'
for calls in ((GOOD,), (UNKNOWN,), (GOOD, CUT), (CUT,)):
    turns, results, answer = play(*calls)
    print(f"{' and '.join(calls)}: {turns} turns, results {results}, answer {answer!r}")
    assert (turns, answer) == ((1, "") if calls == (CUT,) else (2, "It is Ada.")), "LangGraph treats such calls otherwise"
PY
