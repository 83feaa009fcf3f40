"""diffbatch: a list of prompts and some GPUs in, finished pictures and clips out."""

__version__ = "0.1.0"
