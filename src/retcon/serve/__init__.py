"""OpenAI-compatible endpoint that records conversations (docs/models/serving.md). Needs [serve].

request ─► requests.py: parsing ─► sessions.py: its conversation, and its new messages as ids
        ─► agent.py: `rollout.loop` from there ─► a node of the session, the record, and app.py: the reply
"""
