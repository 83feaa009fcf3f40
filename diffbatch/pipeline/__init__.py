"""Stages over Modular Diffusers blocks, and the executor that steps them."""
