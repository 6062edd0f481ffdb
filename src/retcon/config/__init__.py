"""Recipes: their sections, reading them with errors that name the line, and kinds by name or import path."""
