"""What runs on each rank: the Scheduler (rank 0) and the GPUWorker (every rank)."""
