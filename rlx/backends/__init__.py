"""The backends: cpu (NumPy), cuda (CuPy), vulkan; and what the GPUs share."""
