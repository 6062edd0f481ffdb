"""Which rollouts of a group, and which prompts, are trained on."""
