"""The operators' console: static files served at `/`, and the sessions of who signed in."""
