"""Composition of one gateway process from its settings.

resources.py  all parts, opened and closed together
ledger.py     roll-up and export of the ledger
"""
