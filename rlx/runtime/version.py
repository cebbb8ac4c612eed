"""The version of rlx, which saved programs carry."""

VERSION = "0.1.0"
