"""`python -m vpgcnn` is the command `vpgcnn`."""

import sys

from vpgcnn.apps.cli import main

sys.exit(main())
