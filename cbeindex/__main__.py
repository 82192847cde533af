"""The command line as `python -m cbeindex`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
