"""Run the command line with `python -m llama_bolts`, or `python -m src` in a checkout."""

import sys

from .main import main

sys.exit(main())
