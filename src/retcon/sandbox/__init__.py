"""Running untrusted Python: what runs inside (`jail`), the host's side (`pool`), clients, the HTTP service."""
