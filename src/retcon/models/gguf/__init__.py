"""GGUF files as ordinary model folders."""
