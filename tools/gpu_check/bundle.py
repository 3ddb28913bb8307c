# The archive of scripts/gpu-check --bundle: a build's programs and libraries, with the system's libraries that they need.
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

from machine import build_of

LIMIT = 64 * 1024 * 1024
PROGRAMS = ("perigee", "bench_ceilings", "tests_cuda", "tests_exec", "tests_parity", "tests_train")
FOLDERS = ("runtime", "strategies", "tests", "tools/gpu_check")
# On every Linux, or LibTorch's own.
KNOWN = re.compile(r"/(lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s|gomp|torch\w*|c10\w*)|ld-linux.*|lib(cu|nv|nccl)\w*)\.so")


# Returns the system's libraries that the files need.
def needed_libraries(files):
    text = subprocess.run(["ldd", *files], capture_output=True, text=True).stdout
    paths = {found.group(1) for found in re.finditer(r" => (/(?:usr/)?lib/\S+)", text)}
    return sorted(path for path in paths if not KNOWN.search(path))


# Writes the archive. Returns None, or the reason why there is none.
def write_bundle(root, file):
    build = build_of(root)
    libraries = sorted(build.glob("libperigee_*.so"))
    absent = [name for name in PROGRAMS if not (build / name).exists()] + ([] if libraries else ["libperigee_torch.so"])
    if absent:
        return f"gpu-check: --bundle packs a build, but {build}/{absent[0]} is missing: build it first (scripts/build)"
    with tempfile.TemporaryDirectory() as temporary:
        tree = pathlib.Path(temporary, "perigee-gpu-check")
        (tree / "build/system").mkdir(parents=True)
        (tree / "scripts").mkdir()
        for path in [build / name for name in PROGRAMS] + libraries:
            subprocess.run(["strip", "-o", tree / "build" / path.name, path], check=True)
        for library in needed_libraries([str(path) for path in [build / name for name in PROGRAMS] + libraries]):
            shutil.copy(library, tree / "build/system" / pathlib.Path(library).name)
        shutil.copy(root / "scripts/gpu-check", tree / "scripts/gpu-check")
        for folder in FOLDERS:
            shutil.copytree(root / folder, tree / folder, ignore=shutil.ignore_patterns("*.cc", "*.h", "*.cu", "__pycache__", "corpus"))
        with tarfile.open(file, "w:gz") as archive:
            archive.add(tree, tree.name)
    size = file.stat().st_size
    if size >= LIMIT:
        file.unlink()
        return f"gpu-check: the archive must stay below {LIMIT} bytes, but has {size}"
    print(f"gpu-check: wrote {file} ({size / 1e6:.0f} MB)")
    return None
