"""The operators of onnx's own domain, a module a family, which registers them (`reader/places.py`)."""
