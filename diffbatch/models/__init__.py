"""What a model folder says of itself, and how its weights are loaded."""
