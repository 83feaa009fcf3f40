"""Pixels -> files, records and the run folder. No torch."""
