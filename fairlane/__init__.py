"""Multi-tenant LLM serving: the one import name. The rooms stand beside this folder, and are linked here."""
