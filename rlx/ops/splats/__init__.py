"""Gaussian splatting: projection of 3-D Gaussians, lists of tiles, blending and its gradient."""
