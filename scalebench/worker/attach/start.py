"""The program of a rank that runs a user's script: ``python start.py REQUEST``.

It is started by its path, in the user's interpreter. So it first makes the package that it lies in
importable by the name that its modules use, without putting anything else of scalebench's own
environment in the way of the script's imports.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def load_scalebench() -> None:
    """Import ``scalebench`` from where this file lies."""
    package = Path(__file__).resolve().parents[2]
    spec = spec_from_file_location(
        "scalebench", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is no package")
    module = module_from_spec(spec)
    sys.modules["scalebench"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder
    load_scalebench()
    from scalebench.worker.attach.script import main

    sys.exit(main(sys.argv[1]))
