"""OpenAI's administration API over the same tenants, keys and limits: `routes.py` lists its routes."""
