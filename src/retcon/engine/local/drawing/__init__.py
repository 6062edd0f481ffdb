"""Which ids come next: sampled from logits, and drafted before they are."""
