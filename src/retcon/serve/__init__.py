"""An OpenAI-compatible endpoint in front of a model, which records what goes through it (docs/models/serving.md). Needs
[serve].

request ─► requests.py: what it asks ─► sessions.py: where it goes on, and what is new as ids
        ─► agent.py: `rollout.loop` from there ─► a node of the session, the record, and app.py: the reply
"""
