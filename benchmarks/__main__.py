"""Run every benchmark of this directory, each in its own process: ``python benchmarks``.

A benchmark is a module or a package that prints ratios measured side by side on the same machine.
One alone, with options: ``python -m benchmarks.engines --quick``."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run them in order of their names; the exit code counts the ones that failed."""
    packages = (path.parent for path in HERE.glob("*/__main__.py"))
    failed = 0
    for name in sorted(path.stem for path in (*HERE.glob("[!_]*.py"), *packages)):
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        failed += subprocess.run(command, cwd=HERE.parent, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
