"""`python -m keyaki [DATABASE]`: the shell."""

import sys

from ._shell import main

sys.exit(main(sys.argv[1:]))
