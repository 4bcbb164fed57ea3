"""Entry point of ``python -m hetero_la``: the command ``hetero-la``, or a script of the user's."""

import sys

from hetero_la.cli.main import main
from hetero_la.stand_ins.scipy_patch import run_script

if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].endswith(".py"):
        run_script(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(main())
