"""HTTP client, and the parts that our servers share (needs [serve])."""
