"""The engine: continuous batching over a paged KV cache on torch."""
