"""Composition: everything that one gateway process holds, built from its settings.

resources.py  all of it, opened and closed together
ledger.py     roll-up and export of the ledger
"""
