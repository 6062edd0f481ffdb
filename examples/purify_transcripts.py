"""Taking repaired failures out of a transcript that you have, in Python. For files: `retcon purify FILE -o OUT`.

python examples/purify_transcripts.py
"""

from __future__ import annotations

import json

from retcon.transcripts.purifier import purify_transcript


def call(id: str, code: str) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": code})}}


TRANSCRIPT = {
    "messages": [
        {"role": "user", "content": "What is the greatest common divisor of 88 and 33?"},
        {"role": "assistant", "content": "I compute it.", "tool_calls": [call("a", "print(math.gcd(88, 33))")]},
        {"role": "tool", "tool_call_id": "a", "content": "NameError: name 'math' is not defined"},
        {"role": "assistant", "content": "", "tool_calls": [call("b", "import math\nprint(math.gcd(88, 33))")]},
        {"role": "tool", "tool_call_id": "b", "content": "11"},
        {"role": "assistant", "content": "It is 11."},
    ]
}

clean, count = purify_transcript(TRANSCRIPT)
print(f"{count.calls} calls, {count.failed} failed, {count.shallow} shallow and {count.deep} deep repairs")
for message in clean["messages"]:
    print(json.dumps(message))
