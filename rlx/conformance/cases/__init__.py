"""The records of every op, one module a family: `OPS`, of `rlx.conformance.record.Conformance`."""
