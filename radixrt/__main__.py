"""`python -m radixrt` is the command `radixrt`."""

import sys

from radixrt.cli import main

sys.exit(main())
