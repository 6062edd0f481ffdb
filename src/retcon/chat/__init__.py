"""Chats of models: prompts and observations to tokens, calls out of tokens."""
