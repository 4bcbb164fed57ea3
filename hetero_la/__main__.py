"""Entry point of ``python -m hetero_la``, which is the command ``hetero-la``."""

import sys

from hetero_la.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
