"""Job file -> ordered Reqs. Pure Python: no torch, no model code."""
