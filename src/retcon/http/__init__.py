"""What the sandbox's server and the agent's have in common: reading, refusing, listening, ending (needs [serve]); and
what clients of servers have: `asking`."""
