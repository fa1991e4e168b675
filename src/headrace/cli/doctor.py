"""`headrace doctor`: is this installation whole, does the server answer, does anything between buffer its streams.

Whether something buffers is measured on a real run: its records carry the server's stamps, so the time over which
they were written can be compared with the time over which they arrived. Only differences are compared, never clocks.
"""

import argparse
import asyncio
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from headrace.cli.arguments import DEFAULT_URL
from headrace.cli.finding import Finding
from headrace.cli.gpu import gpu
from headrace.cli.listener import listener
from headrace.cli.models import DEFAULT as DEFAULT_MODEL
from headrace.cli.reach import answers, client_for
from headrace.cli.settings import configured
from headrace.cli.terminal import clean, dim, is_terminal
from headrace.client import AsyncClient
from headrace.client.http import Http
from headrace.config import Config, without_password
from headrace.engine.models import installed
from headrace.engine.trial import Trial, put_on_trial
from headrace.engines import remote_engines
from headrace.errors import HeadraceError
from headrace.events import Record

MIN_FILES = 1024
MIN_FREE = 1_000_000_000
QUESTION = "What is a run?"
SPREAD_MS = 200
"""A run that was written faster than this says nothing about buffering."""


def main(options: argparse.Namespace) -> int:
    findings = [*installation(), *gpu(), *settings(options)]
    for finding in findings:
        _print(finding)
    for ask in (model_servers, server):
        for finding in asyncio.run(ask(options)):
            findings.append(finding)
            _print(finding)
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def _print(finding: Finding) -> None:
    mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[finding.level]
    print(
        f"{dim(mark) if finding.level == 'ok' and is_terminal(sys.stdout) else mark}  {clean(finding.text)}", flush=True
    )


def installation() -> Iterator[Finding]:
    """Python, the platform, the embedded engine and its model."""
    version = platform.python_version()
    yield Finding("ok" if sys.version_info >= (3, 11) else "bad", f"Python {version}, {platform.platform()}")
    if importlib.util.find_spec("uvloop") is None:
        yield Finding("note", "uvloop is not installed: events cost about a fifth more.")
    if importlib.util.find_spec("xllamacpp") is None:
        yield Finding("note", "The embedded engine is not installed. To have it: pip install 'headrace[local]'")
    elif (weights := installed(DEFAULT_MODEL)) is None:
        yield Finding("note", f"The embedded engine has no model. To have one: headrace models install {DEFAULT_MODEL}")
    else:
        yield Finding("ok", f"embedded engine, model at {weights}")
    yield from _open_files()


def _open_files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    level: Literal["ok", "note"] = "ok" if soft > MIN_FILES else "note"
    yield Finding(level, f"{soft} open files allowed: about {max(0, soft - 100)} streams at once (ulimit -n)")


def settings(options: argparse.Namespace) -> Iterator[Finding]:
    """The configuration and the place for the log. A wrong configuration is a finding, too."""
    try:
        config = configured(options).config
    except HeadraceError as error:
        yield Finding("bad", f"configuration: {error} {error.hint or ''}".rstrip())
        return
    yield from _log_place(config)


def _log_place(config: Config) -> Iterator[Finding]:
    if config.log.url is not None:
        yield from _redis(config.log.url)
        return
    if config.log.durability == "memory":
        yield Finding("note", "log.durability is memory: a restart forgets every run.")
        return
    path = Path(config.log.path).expanduser()
    parent = next(place for place in (path, *path.parents) if place.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        yield Finding("bad", f"{parent} cannot be written to. Choose another place with log.path.")
        return
    free = shutil.disk_usage(parent).free
    yield Finding("ok" if free > MIN_FREE else "bad", f"log at {path}, {free / 1e9:.1f} GB free")


def _redis(url: str) -> Iterator[Finding]:
    shown = without_password(url)
    if importlib.util.find_spec("redis") is None:
        yield Finding("bad", f"log.url is {shown}, and the driver is missing: pip install 'headrace[redis]'")
        return
    from headrace.log.redis.server_check import look_at

    try:
        remarks = look_at(url)
    except HeadraceError as error:
        yield Finding("bad", f"log at {shown}: {error} {error.hint or ''}".rstrip())
        return
    yield Finding("ok", f"log at {shown}")
    yield from (Finding(remark.level, f"Redis: {remark.text}") for remark in remarks)


async def model_servers(options: argparse.Namespace) -> list[Finding]:
    """Each of those that are configured, put on trial; all at the same time, as each may take a minute to fail."""
    try:
        wanted = configured(options).config.engine
    except HeadraceError:
        return []  # the settings have said so
    try:
        named = [("model server", remote_engines(wanted))]
        if wanted.fallback is not None:
            named.append(("fallback", remote_engines(wanted.fallback)))
    except HeadraceError as error:
        return [Finding("bad", f"model server: {error} {error.hint or ''}".rstrip())]
    asked = [(what, url, engine) for what, engines in named for url, engine in engines.items()]
    trials = await asyncio.gather(*(put_on_trial(engine) for _, _, engine in asked))
    findings: list[Finding] = []
    for (what, url, _), trial in zip(asked, trials, strict=True):
        findings.append(Finding(_level(trial), f"{what} {url}: {trial.text}"))
        findings += [Finding(remark.level, f"{what} {url}: {remark.text}") for remark in trial.remarks]
    return findings


def _level(trial: Trial) -> Literal["ok", "note", "bad"]:
    if trial.error is None:
        return "ok"
    return "bad" if trial.vector is None else "note"  # for embeddings it may be well


async def server(options: argparse.Namespace) -> list[Finding]:
    """The server at --url, or at the usual place."""
    url = options.url or DEFAULT_URL
    if not await answers(url):
        owner = None if options.url else listener(int(DEFAULT_URL.rpartition(":")[2]))
        text = f"{owner} listens at {url}, but not as Headrace." if owner else f"No server answers at {url}."
        return [Finding("bad" if options.url or owner else "note", text)]
    findings = [Finding("ok", f"server at {url}"), await _ready(url)]
    try:
        async with client_for(options) as client:
            return [*findings, *await buffering(client)]
    except HeadraceError as error:
        return [*findings, Finding("bad", f"a run could not be tried: {error} {error.hint or ''}".rstrip())]


async def _ready(url: str) -> Finding:
    http = Http(url, patience=0)
    try:
        await http.request("GET", "/readyz")
    except HeadraceError as error:
        return Finding("bad", f"it is not ready for runs: {error}")
    finally:
        await http.close()
    return Finding("ok", "it is ready for runs")


async def buffering(client: AsyncClient) -> list[Finding]:
    """Ask the first agent something, and compare how the records came with how they were written."""
    began = time.monotonic()
    run = await client.start(QUESTION, metadata={"source": "headrace doctor"})
    items = run.events(chunk="token")
    stamps = [(item.ts, time.monotonic()) async for item in items if isinstance(item, Record)]
    if run.state.error is not None:
        return [Finding("bad", f"a run failed: {run.state.error.message} {run.state.error.hint or ''}".rstrip())]
    took = (time.monotonic() - began) * 1000
    return [Finding("ok", f"a run took {took:.0f} ms, {len(stamps)} records"), judge(stamps)]


def judge(stamps: list[tuple[int, float]]) -> Finding:
    """From (server's stamp in ms, arrival in s) of each record: did they come as they were written?"""
    written = stamps[-1][0] - stamps[0][0]
    arrived = (stamps[-1][1] - stamps[0][1]) * 1000
    if written < SPREAD_MS:
        return Finding("note", f"it was written within {written} ms: too fast to tell whether anything buffers.")
    if arrived < written / 2:
        text = f"written over {written} ms, arrived within {arrived:.0f} ms: something between buffers the stream."
        return Finding("bad", f"{text} Turn buffering off there (nginx: proxy_buffering off).")
    return Finding("ok", f"nothing between buffers: written over {written} ms, arrived over {arrived:.0f} ms")
