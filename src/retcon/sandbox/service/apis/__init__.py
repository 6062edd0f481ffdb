"""The APIs that the service speaks: its own, code-judge's, SandboxFusion's."""
