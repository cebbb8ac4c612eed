"""The operators of quantized models, a module a family, which registers them (`reader/places.py`)."""
