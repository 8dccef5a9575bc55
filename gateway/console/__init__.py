"""The operators' console: static files, served at `/`."""
