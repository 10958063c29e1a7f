"""`python -m qcrl.cli`, where the command itself is not on the path."""

import sys

from qcrl.cli.main import main

sys.exit(main())
