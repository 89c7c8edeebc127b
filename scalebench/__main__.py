"""``python -m scalebench``."""

from scalebench.cli import main

main()
