"""Saved programs: a compiled program as a file, and back."""
