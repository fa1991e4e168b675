"""The command line of a measured server. Standard library only: rivals import this too."""

import argparse


def server_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--discard", action="store_true", help="make the events, write one in fifty")
    parser.add_argument("--data", default=".", help="a folder for the server's files")
    return parser.parse_args()
