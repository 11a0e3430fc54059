"""``python -m kvsan.cli`` is ``kvsan``."""

import sys

from kvsan.cli import main

sys.exit(main())
