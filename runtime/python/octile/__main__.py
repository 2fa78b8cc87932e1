"""``python -m octile`` becomes the command ``octile``."""

import os
import sys

from octile import command


def main() -> None:
    """Replaces this process with the command."""
    os.execv(command(), ["octile", *sys.argv[1:]])


if __name__ == "__main__":
    main()
