# The machine that the check runs on: the files of this build or bundle, LibTorch, and the GPUs.
import glob
import os
import pathlib
import shutil
import subprocess


# Returns the lines that a command prints; none where there is no such command or it fails.
def lines_of(*command):
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return ran.stdout.strip().split("\n") if ran.returncode == 0 else []


# Returns the folder of the build: that of the tree or archive, unless PERIGEE_BUILD names another.
def build_of(root):
    return pathlib.Path(os.environ.get("PERIGEE_BUILD", root / "build")).absolute()


class Machine:
    def __init__(self, root, device, torch):
        self.root, self.build = root, build_of(root)
        self.gpus = [line for line in lines_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") if line]
        self.device = device or ("cuda" if self.gpus or glob.glob("/dev/nvidia[0-9]*") else "cpu")
        self.torch = torch or self.find_torch()
        self.ceilings = None  # measured by the part of this name

    def find_torch(self):
        installed = self.root / ".deps/torch/lib"
        if installed.is_dir():
            return installed
        where = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
        found = lines_of("python3", "-c", where)
        return pathlib.Path(found[0]) / "lib" if found else None

    # Returns why the check cannot begin, or "".
    def missing(self):
        if not (self.build / "perigee").exists():
            return f"{self.build}/perigee is missing: build it (scripts/setup, scripts/build), or unpack an archive of --bundle"
        if not self.torch or not (self.torch / "libtorch_cpu.so").exists():
            return f"LibTorch 2.11 must be in --torch DIR, .deps/torch or python3's torch, but libtorch_cpu.so is not in {self.torch}"
        return ""

    def name(self):
        if self.device == "cpu":
            return "the CPU"
        return f"{max(1, len(self.gpus))} x {self.gpus[0] if self.gpus else 'GPU'}"

    # Returns the variables with which the build's programs find LibTorch and their other libraries.
    def environment(self):
        variables = {"PERIGEE_BUILD": str(self.build)}
        if (self.build / "system").is_dir():  # a bundle: made elsewhere, with paths of another machine
            site = self.torch.resolve().parent.parent
            folders = [self.build, self.torch, *sorted(site.glob("nvidia/*/lib"))]
            toolkit = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
            folders += [pathlib.Path(toolkit).resolve().parent.parent / "lib64", self.build / "system"]
            before = os.environ.get("LD_LIBRARY_PATH")
            variables["LD_LIBRARY_PATH"] = ":".join([str(folder) for folder in folders] + ([before] if before else []))
        return variables

    # Returns the version of python3's torch, or "".
    def python_torch(self):
        return "".join(lines_of("python3", "-c", "import torch; print(torch.__version__)"))
