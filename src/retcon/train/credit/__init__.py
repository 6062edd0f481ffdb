"""The kinds of [credit], one per file: what a file defines is named by the file's name."""
