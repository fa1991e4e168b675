"""The command line's grammar."""

import argparse
import os

from headrace import __version__

DEFAULT_URL = "http://127.0.0.1:8321"

_Commands = argparse._SubParsersAction  # argparse has no public name for it


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="headrace", description="Serves AI agents in real time: a run lives in a log, not in a connection."
    )
    root.add_argument("--version", action="version", version=f"headrace {__version__}")
    root.set_defaults(debug=False, command=None)
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    for add in (_serve, _run, _tail, _replay, _runs, _cancel, _bench, _doctor, _config, _models, _replicas):
        add(commands)
    return root


def _command(
    commands: "_Commands[argparse.ArgumentParser]", name: str, text: str, module: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
    command.set_defaults(module=module)
    command.add_argument("--debug", action="store_true", help="show where an error came from")
    return command


def _server_flags(command: argparse.ArgumentParser) -> None:
    """Flags that are settings; their `dest` is the setting's key (see config/)."""
    command.add_argument("--config", metavar="FILE", help="TOML file (default: headrace.toml, if it is there)")
    command.add_argument("--host", dest="server.host", help="address to listen on")
    command.add_argument("--port", dest="server.port", help="port to listen on, 0 for any free one")
    command.add_argument("--log-path", dest="log.path", metavar="DIR", help="where runs are kept")
    command.add_argument("--log-url", dest="log.url", metavar="URL", help="the Redis that several servers share")
    command.add_argument("--durability", dest="log.durability", help="memory, journal (default) or fsync")
    command.add_argument("--engine-url", dest="engine.url", metavar="URL", help="a model server, or several: URL,URL")
    command.add_argument("--engine-preset", dest="engine.preset", metavar="NAME", help="which one: vllm, anthropic …")
    command.add_argument(
        "--model",
        dest="engine.model",
        help="its name at that server; without one, the embedded model: smollm2 (default), gemma, or a GGUF file",
    )


def _client_flags(command: argparse.ArgumentParser) -> None:
    url, key = os.environ.get("HEADRACE_URL"), os.environ.get("HEADRACE_API_KEY")
    command.add_argument("--url", default=url, help=f"the server's address (HEADRACE_URL; default {DEFAULT_URL})")
    command.add_argument("--api-key", default=key, help="its key, if it wants one (HEADRACE_API_KEY)")


def _serve(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "serve", "serve agents over HTTP and WebSocket, and the page", "serve")
    command.add_argument("app", nargs="?", metavar="module:app", help="what to serve (default: the demo)")
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    _server_flags(command)


def _run(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "run", "ask a question and watch the answer come", "run")
    command.add_argument("question", help="the question; - reads it from standard input")
    command.add_argument("--agent", help="which agent (default: the server's first)")
    command.add_argument("--thread", metavar="ID", help="go on with a conversation")
    _client_flags(command)


def _tail(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "tail", "follow a run's records, one a line, until it ends", "tail")
    command.add_argument("run", metavar="RUN")
    command.add_argument("--after", type=int, default=0, metavar="N", help="only what came after this seq")
    command.add_argument("--json", action="store_true", help="a JSON object a line (the default when piped)")
    _client_flags(command)


def _replay(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "replay", "show a run again as it was, at its own pace", "replay")
    command.add_argument("run", metavar="RUN")
    command.add_argument("--speed", type=float, default=1.0, metavar="X", help="times as fast; 0 does not wait")
    _client_flags(command)


def _runs(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "runs", "list the latest runs", "runs")
    command.add_argument("--limit", type=int, default=20, metavar="N")
    command.add_argument("--json", action="store_true", help="a JSON object a line")
    _client_flags(command)


def _cancel(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "cancel", "stop a run and wait until it has stopped", "cancel")
    command.add_argument("run", metavar="RUN")
    _client_flags(command)


def _bench(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "bench", "measure this machine (needs a source checkout)", "bench")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="passed on to scripts/bench")


def _doctor(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "doctor", "check the installation, the server, and what is between", "doctor")
    command.add_argument("--config", metavar="FILE", help="the server's TOML file")
    _client_flags(command)


def _config(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "config", "print every setting and where it comes from", "settings")
    _server_flags(command)


def _models(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "models", "list or install models for the embedded engine", "models")
    command.add_argument("action", nargs="?", choices=["list", "install"], default="list")
    command.add_argument("name", nargs="?", help="which one to install")


def _replicas(commands: "_Commands[argparse.ArgumentParser]") -> None:
    command = _command(commands, "replicas", "show the model servers, take one out of service or back", "replicas")
    command.add_argument("action", nargs="?", choices=["list", "drain", "resume"], default="list")
    command.add_argument("name", nargs="?", help="which one, as the list shows it")
    command.add_argument(
        "--wait", type=float, metavar="S", help="seconds to wait until it is drained, or back (default: 0, or 10)"
    )
    command.add_argument("--force", action="store_true", help="drain also the last one in service")
    command.add_argument("--json", action="store_true", help="a JSON object a line")
    _client_flags(command)
