"""How the base model inside the package is made."""
