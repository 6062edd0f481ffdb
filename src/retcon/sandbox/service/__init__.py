"""The sandbox over HTTP: its own API, code-judge's and SandboxFusion's (docs/sandbox/service.md). Needs [serve]."""
