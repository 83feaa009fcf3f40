"""make_tiny_checkpoints DIR [name ...]"""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny_checkpoints import BUILDERS, build


def main() -> None:
    """Build the named checkpoints, or all of them, each in DIR/name."""
    parser = argparse.ArgumentParser(prog="make_tiny_checkpoints", description=__doc__)
    parser.add_argument("dir", type=Path, help="parent folder")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BUILDERS)}")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in BUILDERS]
    if unknown:
        parser.error(f"unknown checkpoint {unknown[0]!r}; choose from {', '.join(BUILDERS)}")
    for name in args.names or BUILDERS:
        build(name, args.dir / name)
        print(args.dir / name)


if __name__ == "__main__":
    main()
