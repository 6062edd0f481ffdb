"""The kinds of [demos], one a file: what a file here defines can be named by the file's name."""
