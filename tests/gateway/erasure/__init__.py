"""Erasing what deleted tenants had."""
