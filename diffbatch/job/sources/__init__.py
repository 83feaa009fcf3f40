"""Prompt files as streams of rows: one reader per kind of format."""
