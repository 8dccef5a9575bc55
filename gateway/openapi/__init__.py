"""GET /openapi.json: `document.py` makes it from the models and tables that serve requests."""
