"""What a step makes smaller: advantages, the loss, and the old log-probs that it compares with."""
