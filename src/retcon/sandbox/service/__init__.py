"""The sandbox over HTTP: its own API, code-judge's and SandboxFusion's. Needs the [serve] extra (docs/service.md)."""
