"""``scalebench`` and ``python -m scalebench``: a package that cannot be imported is no verdict."""

import sys
from typing import NoReturn

from scalebench.errors import ExitCode, defect


def main() -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    try:
        from scalebench.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
    except ImportError as error:
        print(f"scalebench: {error}. Install scalebench again.", file=sys.stderr)
        sys.exit(int(ExitCode.ENVIRONMENT))
    except BaseException as error:
        print(f"scalebench: {defect(error)}", file=sys.stderr)
        sys.exit(int(ExitCode.DEFECT))
    command_line()


if __name__ == "__main__":
    main()
