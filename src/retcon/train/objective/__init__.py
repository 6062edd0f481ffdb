"""What a step minimises: advantages, the loss, and the old log-probs that it compares with."""
