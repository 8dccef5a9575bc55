"""Attention backends, one file each, behind one Protocol."""
