"""The sandbox over HTTP: its own API, and those of code-judge and SandboxFusion. Needs the [serve] extra (docs/service.md)."""
