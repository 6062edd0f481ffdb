"""The tools that a recipe can name, one a file: a file's name is the name."""
