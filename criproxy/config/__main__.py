"""`python -m criproxy.config` prints the example config file."""

import sys

from criproxy.config.example import render

sys.stdout.write(render())
