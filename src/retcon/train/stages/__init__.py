"""The stages of a run: what each comes to, and what it draws."""
