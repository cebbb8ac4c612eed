"""The operators of com.microsoft, a module a family, which registers them (`reader/places.py`)."""
