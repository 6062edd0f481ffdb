"""Trackers that `track.to` can name, one file each, by file name."""
