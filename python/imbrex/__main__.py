"""python -m imbrex info|bench|mlp|run|...: the tool that this package was installed with."""
import os
import shutil
import sys
from typing import NoReturn, Optional


def tool() -> Optional[str]:
    """The tool's file: in this package's wheel, in this repository, where `cmake --install` put
    both, or on PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    near = (os.path.join(here, *parts, "imbrex") for parts in (
        ("bin",), ("..", "..", "build", "release"), ("..", "..", "..", "..", "bin")))
    found = next((file for file in near if os.access(file, os.X_OK)), None)
    return found or shutil.which("imbrex")


def main() -> NoReturn:
    """Becomes the tool, which has this process's arguments and environment."""
    file = tool()
    if file is None:
        sys.exit("imbrex: the tool is not installed with this package: build it with "
                 "-DIMBREX_BUILD_CLI=ON, or put it on PATH")
    os.execv(file, [file, *sys.argv[1:]])


if __name__ == "__main__":
    main()
