"""Start the workers, feed them, watch them: the parent's side of a run. No torch."""
