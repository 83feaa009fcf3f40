"""Typer commands, one file each: parse, call, print. Imports no torch."""
