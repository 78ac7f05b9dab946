"""`python -m criproxy` is the command line."""

import sys

from criproxy.cli import main

sys.exit(main())
