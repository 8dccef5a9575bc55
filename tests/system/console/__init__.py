"""The operators' console in a real browser."""
