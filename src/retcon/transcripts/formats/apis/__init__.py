"""What model APIs call by and answer with: requests and responses, and the loggers of these."""
