"""`python -m radixrt` is the command `radixrt`."""

import sys

# `python -m` searches the current folder first, where a user's queue.py or secrets.py would replace Python's. The
# package itself has been found by now.
if not sys.flags.safe_path:
    del sys.path[0]

from radixrt.cli import main

sys.exit(main())
