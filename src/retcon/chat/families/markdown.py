"""Family of the packaged model: Python blocks as calls, no tools shown."""

from retcon.chat.formats import CallFormat
from retcon.chat.learned import CodeBlocks
from retcon.chat.types import END_OF_TEXT, TURN_END, TURN_START

FAMILY = CodeBlocks(
    CallFormat("object", "", "", "", "", ""), (TURN_END,), observed_between=(f"{TURN_START}tool\n", TURN_END),
    stops=(END_OF_TEXT,), name="markdown", controls=(TURN_START,), piecewise=True, calls_are_text=True,
    template="{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
)  # fmt: skip
