"""The tools that a recipe can name, one per file, which gives it its name."""
