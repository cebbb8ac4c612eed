"""NumPy kernels of the ops: what runs where the engine has none, and the host steps of the GPUs."""
