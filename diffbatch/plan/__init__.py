"""What will run and where: micro-batches and cost, layout, memory. Pure Python, no torch."""
