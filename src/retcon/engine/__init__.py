"""Engines that generate tokens, in this process and on servers."""
