"""The commands, one file each, or a folder for those with several parts."""
