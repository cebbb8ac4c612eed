"""Linear algebra: decompositions, and functions computed from them."""
