"""Attention: `blocks` of queries along the lanes of vectors, or single `rows` with a head's elements along them."""
