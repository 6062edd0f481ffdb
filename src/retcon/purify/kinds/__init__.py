"""The kinds of [repair], one a file: what a file here defines can be named by the file's name."""
