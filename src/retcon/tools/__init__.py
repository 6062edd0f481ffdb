"""The protocols of tools, and the Python tool with and without state."""
