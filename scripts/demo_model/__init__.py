"""Training of the demo model, from drawn pictures to a diffusers folder."""
