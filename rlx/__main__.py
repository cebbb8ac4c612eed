"""`python -m rlx`: the command line where its script is not on the PATH."""

from rlx.cli import main

if __name__ == "__main__":
    main()
