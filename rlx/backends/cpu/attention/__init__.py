"""Attention: in `blocks` vector lanes are queries, in `rows` (a single query) they are a head's elements."""
