"""Entry point of ``python -m flstudy.benchmark``."""

import sys

from flstudy.benchmark.command import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        print(f"flstudy: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
