"""Conversations of OpenHands' agent with the model at a URL, in a process of their own, as its SDK needs Python 3.12.

    .venv-openhands/bin/python -I tests/servers/openhands_agent.py '{"url": …, "model": …, "sessions": […], …}'

sessions: one conversation each. say: what the user says. workspace: a folder. tools: by name, beside `finish` and
`think`. turns: of the model, at most. condense: events beyond which a history is summed up, but for the first four;
without it, never. condenser: URL of the model that sums it up. llm, agent: further settings of either. Prints a line
for each: how it ended, and what the agent said last.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one
os.environ["LOG_LEVEL"] = "ERROR"

from openhands.sdk import LLM, Agent, Conversation, LLMSummarizingCondenser, Tool
from openhands.sdk.conversation.response_utils import get_agent_final_response
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool

TOOLS = {"terminal": Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}),
         "file_editor": Tool(name=FileEditorTool.name)}  # fmt: skip


def main(asked: dict[str, Any]) -> None:
    for session in asked["sessions"]:
        llm = LLM(
            model=f"openai/{asked['model']}",
            base_url=asked["url"],
            api_key="none",
            num_retries=0,
            extra_headers={"X-Retcon-Session": session, "X-Retcon-Task": "asked"} if session else {},
            **asked.get("llm", {}),
        )
        condenser = None
        if asked.get("condense"):
            own = {"base_url": asked.get("condenser", asked["url"]), "usage_id": "condenser"}
            condenser = LLMSummarizingCondenser(
                llm=llm.model_copy(update=own), max_size=asked["condense"], keep_first=4
            )
        tools = [TOOLS[name] for name in asked.get("tools", ())]
        conversation = Conversation(
            Agent(llm=llm, tools=tools, condenser=condenser, **asked.get("agent", {})),
            workspace=asked["workspace"],
            max_iteration_per_run=asked.get("turns", 20),
            token_callbacks=[lambda _: None],
            stuck_detection=False,
            visualizer=None,
        )
        conversation.send_message(asked["say"])
        conversation.run()
        state = conversation.state
        print(json.dumps([state.execution_status.value, get_agent_final_response(state.events)]))
        conversation.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
