"""Our engine on one GPU beside what the GPU can do."""
