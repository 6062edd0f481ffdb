"""How a model is addressed: prompts, tool schemas and observations to tokens, and calls out of tokens."""
