# Packages of PyPI for tests, kept in folders of the build.
import fcntl
import pathlib
import shutil
import subprocess
import sys


# Installs the packages into `folder`, once, and makes them importable. Exits with 77 where that does not work.
def install(folder, packages, options=()):
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists() or done.read_text() != str(packages):
            shutil.rmtree(folder, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
                       "--only-binary=:all:", "--retries", "1", "--target", str(folder), *options]
            result = subprocess.run(command + packages, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=200)
            if result.returncode != 0:
                print(f"no packages: {result.stderr.strip()[-300:]}", flush=True)
                sys.exit(77)
            done.write_text(str(packages))
    sys.path.insert(0, str(folder))
