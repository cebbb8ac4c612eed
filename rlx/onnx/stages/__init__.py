"""Models whose shapes depend on values: a compiled program up to the cut, and nodes that the host runs behind it."""
