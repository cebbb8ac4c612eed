"""Recurrences along a sequence: the selective scan, the gated delta rule, and the causal convolution before them."""
