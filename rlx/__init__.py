"""rlx: one tensor program, any device, the same answer."""
