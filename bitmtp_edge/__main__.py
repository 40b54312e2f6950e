"""`python -m bitmtp_edge` is the command `bitmtp-edge`."""

from __future__ import annotations

import sys

from bitmtp_edge.cli import main

sys.exit(main())
