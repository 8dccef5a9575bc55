"""Requests to models that generate nothing: OpenAI's embeddings; scores and rankings of vLLM, Jina and Cohere."""
