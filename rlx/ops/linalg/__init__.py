"""Linear algebra: decompositions and what follows from them."""
