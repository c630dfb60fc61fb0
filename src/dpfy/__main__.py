"""``python -m dpfy`` is ``dpfy``."""

from dpfy.cli.app import main

if __name__ == "__main__":
    main()
