"""`python -m rlx.cli`, for where the `rlx` script is not on the PATH."""

from rlx.cli import main

main()
