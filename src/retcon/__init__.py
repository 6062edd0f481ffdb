"""Retcon: agentic RL for models that write and run Python. `import retcon` needs no torch."""

__version__ = "0.1.0"
