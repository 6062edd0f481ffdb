"""Settings of every test."""

from hypothesis import settings

# A busy machine is slow, not wrong: no deadline. Few examples, since the whole suite must stay quick.
settings.register_profile("retcon", deadline=None, max_examples=40)
settings.load_profile("retcon")
