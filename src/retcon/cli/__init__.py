"""Commands of `retcon`, one module per command or group."""
