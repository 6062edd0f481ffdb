"""Inside of the sandbox: zygotes, workers and processes of calls. Standard library only."""
