"""Kill for as long as wanted: the crash tests, round after round with other seeds, until one fails or somebody stops it.

python -m tests.crash.soak [ROUNDS]
"""

import itertools
import os
import subprocess
import sys


def main() -> int:
    """Run the rounds; the exit code of the first that fails."""
    rounds = range(int(sys.argv[1])) if len(sys.argv) > 1 else itertools.count()
    for number in rounds:
        seed = str(1000 + number)
        print(f"round {number + 1}, seed {seed}", flush=True)
        environ = os.environ | {"NBFLOW_SEED": seed, "NBFLOW_KILLS": os.environ.get("NBFLOW_KILLS", "200")}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "1800", "tests/crash"]
        code = subprocess.call(command, env=environ)
        if code:
            print(f"round {number + 1} failed; again: NBFLOW_SEED={seed} pytest tests/crash", flush=True)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
