"""Kill and disturb for hours rather than seconds, with other seeds each round: python -m tests.crash.soak [ROUNDS]

One round: 1,000 kernels killed at random moments, 200 engines under two others, 200 ends at one write, 200 writers of the store
at chosen points, 60 kernels between a file and its entry, a store that dies or fails at 500 of its writes, two kernels and a
shell for ten minutes, a tab closed for three. Without ROUNDS until one fails or somebody stops it. Each number has a variable:
see SETTINGS.
"""

import itertools
import os
import subprocess
import sys
import time

SETTINGS = {
    "tests/crash/test_soak.py": {
        "NBFLOW_KILLS": "1000",
        "NBFLOW_REAL": "3",
        "NBFLOW_ENGINE_KILLS": "200",
        "NBFLOW_CUTS": "200",
    },
    "tests/crash/test_store_kills.py": {"NBFLOW_KILLS": "200"},
    "tests/crash/test_artifact_kills.py": {"NBFLOW_KILLS": "60"},
    "tests/crash/test_faults.py": {"NBFLOW_FAULTS": "500"},
    "tests/crash/test_neighbours.py": {"NBFLOW_NEIGHBOURS": "600"},
    "tests/store/test_damage.py": {"NBFLOW_DAMAGE": "every"},
    "tests/store/test_torn_blocks.py": {"NBFLOW_DAMAGE": "every"},
    "tests/browser/test_away.py": {"NBFLOW_AWAY": "180"},
    "tests/crash": {},
}


def main() -> int:
    """Run the rounds; the exit code of the first that fails."""
    rounds = range(int(sys.argv[1])) if len(sys.argv) > 1 else itertools.count()
    for number in rounds:
        for place, given in SETTINGS.items():
            seed = str(1000 + number)
            environ = {"NBFLOW_SEED": seed, **given, **os.environ}
            rest = [f"--ignore={done}" for done in SETTINGS if done.endswith(".py")] if not given else []
            print(f"round {number + 1}, seed {seed}: {place}", flush=True)
            began = time.monotonic()
            chance = [f"--hypothesis-seed={seed}"]
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", *chance, *rest, place]
            code = subprocess.call(command, env=environ)
            if code:
                settings = " ".join(f"{name}={value}" for name, value in {"NBFLOW_SEED": seed, **given}.items())
                print(f"failed; again: {settings} pytest -s --hypothesis-seed={seed} {place}", flush=True)
                return code
            print(f"well after {time.monotonic() - began:,.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
