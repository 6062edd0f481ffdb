"""Selection of rollouts and prompts to train on."""
