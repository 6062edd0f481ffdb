"""Where a model comes from, loading it, devices, dtypes and adapters."""
