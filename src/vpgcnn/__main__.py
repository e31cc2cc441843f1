"""`python -m vpgcnn` is the command `vpgcnn`."""

import sys

from vpgcnn.cli import main

sys.exit(main())
