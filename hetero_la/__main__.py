"""``python -m hetero_la`` is the command ``hetero-la``."""

import sys

from hetero_la.cli import main

sys.exit(main())
