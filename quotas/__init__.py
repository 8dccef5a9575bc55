"""Tenants, API keys, token budgets and the usage ledger."""
