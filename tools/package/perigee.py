"""Where the installed Perigee is. Training itself runs without Python."""

import os
import platform
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def executable():
    """Returns the path of the command."""
    return os.path.join(_FOLDER, "bin", "perigee")


def cmake_dir():
    """Returns the folder for CMAKE_PREFIX_PATH, where find_package(Perigee) finds the libraries and headers."""
    return os.path.join(_FOLDER, "lib", "cmake", "Perigee")


def _misfit():
    """Returns why the command cannot run on this machine (pip refuses most such machines), or None."""
    with open(os.path.join(_FOLDER, "share", "perigee", "libtorch", "system")) as file:
        built_machine, built_libc = file.read().split()
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    except (AttributeError, ValueError):
        libc = "0"
    numbers = [[int(part) for part in version.split(".")] for version in (built_libc, libc)]
    if platform.machine() == built_machine and numbers[0] <= numbers[1]:
        return None
    return (
        f"this package is for {built_machine} with glibc {built_libc} or later, but this is {platform.machine()} with "
        f"{'another C library' if libc == '0' else 'glibc ' + libc}: build Perigee from its source here"
    )


def main():
    """Becomes the command."""
    misfit = _misfit()
    if misfit:
        print(f"perigee: [package] {misfit}", file=sys.stderr)
        sys.exit(2)
    os.execv(executable(), [sys.argv[0], *sys.argv[1:]])
