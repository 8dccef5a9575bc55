"""OpenAI's administration API over the same tenants, keys and limits: `operations.py` lists its routes."""
