"""The operators of ai.onnx.ml, a module a family, which registers them (`reader/places.py`)."""
