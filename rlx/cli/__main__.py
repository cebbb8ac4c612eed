"""`python -m rlx.cli`, for environments in which the `rlx` script is not on the PATH."""

from rlx.cli import main

main()
