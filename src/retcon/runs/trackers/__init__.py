"""The trackers that a recipe can name (`track.to`), one per file, which gives it its name."""
