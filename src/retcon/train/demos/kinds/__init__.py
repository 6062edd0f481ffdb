"""The kinds of [demos], one per file: what a file defines is named by the file's name."""
