"""Choices of algorithms by measurement: the search, and the tables that keep what it found."""
