"""The conformance records of every op, one module for each family; its `OPS` holds `Conformance` records."""
