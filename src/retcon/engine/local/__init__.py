"""Continuous batching over any Hugging Face causal LM, in this process."""
