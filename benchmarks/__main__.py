"""Run every benchmark of this directory, each in its own process: ``python benchmarks``.

A benchmark is a script that prints ratios measured side by side on the same machine.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run the scripts in order of their names; the exit code counts the ones that failed."""
    scripts = [path for path in sorted(HERE.glob("*.py")) if not path.name.startswith("_")]
    failed = 0
    for script in scripts:
        print(f"== {script.name}", flush=True)
        failed += subprocess.run([sys.executable, str(script)], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
