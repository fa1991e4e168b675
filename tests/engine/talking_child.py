"""A child that says back what it is told, as `python -m`. `deaf` ends only when it is killed."""

import sys
import time


def main() -> None:
    for line in sys.stdin:
        print(line.strip(), flush=True)
        if "deaf" in line:
            time.sleep(3600)
        if "die" in line:
            sys.exit(7)


if __name__ == "__main__":
    main()
