"""Where the installed Perigee is. Training itself runs without Python."""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def executable():
    """Returns the path of the command."""
    return os.path.join(_FOLDER, "bin", "perigee")


def cmake_dir():
    """Returns the folder for CMAKE_PREFIX_PATH, where find_package(Perigee) finds the libraries and headers."""
    return os.path.join(_FOLDER, "lib", "cmake", "Perigee")


def main():
    """Becomes the command."""
    os.execv(executable(), [sys.argv[0], *sys.argv[1:]])
