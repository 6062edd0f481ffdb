"""The trackers that a recipe can name (`track.to`), one a file: a file's name is the name."""
