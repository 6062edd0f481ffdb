"""Transcript formats: any module here or below with an instance of `Format`."""
