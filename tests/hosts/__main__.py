"""Run the kernel tests under other versions of ipykernel, and in kernels where `nest_asyncio.apply()` was called.

Each version of ipykernel gets an environment of its own in `.hosts/`, which finds all other packages in the present one.
Terminal IPython, papermill, nbclient and plain scripts are hosts that `tests/jupyter` and `tests/test_cli.py` start themselves.

    python -m tests.hosts [HOST …] [-- arguments for pytest]
"""

import os
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/jupyter", "tests/test_cli.py")
PARALLEL = ("-n", "2", "--dist", "loadfile")
NEST = "import nest_asyncio; nest_asyncio.apply()"


@dataclass(frozen=True)
class Host:
    """One kind of kernel: a version of ipykernel, and what every kernel runs first."""

    name: str
    ipykernel: str
    startup: str = ""


HOSTS = (
    Host("ipykernel-6.29", "6.29.*"),
    Host("ipykernel-7.3", "7.3.*"),
    Host("ipykernel-7.4", "7.4.*"),
    Host("nest-asyncio", "7.4.*", NEST),
)


def python_of(host: Host) -> Path:
    """The interpreter of a host's environment, made where it is missing."""
    folder = ROOT / ".hosts" / f"ipykernel-{host.ipykernel.removesuffix('.*')}"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True, symlinks=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*install, f"ipykernel=={host.ipykernel}"], check=True)
        site = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
        )
        Path(site.stdout.strip(), "present.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        done.touch()
    return python


def run(host: Host, arguments: list[str]) -> tuple[str, bool]:
    """Run the tests; what pytest said in the end, and whether all passed."""
    python = python_of(host)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NBFLOW_TEST_STARTUP": host.startup}
    version = subprocess.run(
        [python, "-c", "import ipykernel; print(ipykernel.__version__)"], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()
    if not version.startswith(host.ipykernel.removesuffix("*")):
        return f"has ipykernel {version}", False
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PARALLEL, *(arguments or TESTS)]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    for line in failed or (lines[-40:] if done.returncode else []):
        print(f"    {line}", flush=True)
    if done.returncode:
        said = python.parents[2] / f"{host.name}.log"
        said.write_text(done.stdout + done.stderr)
        print(f"    all of it is in {said.relative_to(ROOT)}", flush=True)
    return (
        f"ipykernel {version}: {lines[-1] if lines else done.stderr[-500:]} ({time.monotonic() - began:.0f} s)",
        not done.returncode,
    )


def main() -> int:
    """Run all hosts, or those named."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    wanted, arguments = words[:cut], words[cut + 1 :]
    good = True
    for host in HOSTS:
        if wanted and host.name not in wanted:
            continue
        told, passed = run(host, arguments)
        print(f"{host.name:15} {told}", flush=True)
        good &= passed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
