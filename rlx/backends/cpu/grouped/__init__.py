"""Grouped products: rows sorted by expert, each group times a weight of its own."""
