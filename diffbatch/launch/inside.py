"""`diffbatch run` inside an existing torchrun: every rank takes its place, nothing is launched."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial

from rich.console import Console

from diffbatch.errors import EXIT_OK, PlanError
from diffbatch.launch.choose import Choice, group_layout, refusal
from diffbatch.launch.feed import Feed
from diffbatch.launch.prepare import Prepared
from diffbatch.launch.run import RunChoices, carry_out, worker_spec
from diffbatch.plan.layout import Layout
from diffbatch.req import MicroBatch
from diffbatch.terminal import printable
from diffbatch.worker.link import Message, QueueLink, queue_link_pair
from diffbatch.worker.spec import RankEnv

_TURN_S = 0.2
_OVER: Message = {"event": "over"}  # from the main thread: the workers have left


def inside_torchrun() -> bool:
    """Whether torchrun (or a launcher like it) started this process as one rank of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def run_inside(prepared: Prepared, choices: RunChoices, console: Console) -> int:
    """Serve as one rank; rank 0 is the client too. Returns the exit code, which rank 0 decides."""
    from diffbatch.worker.main import keep_log, work

    env = RankEnv.read()
    layout = _layout(prepared, env.world_size)
    spec = worker_spec(prepared, layout, choices.threads, profile=choices.profile)
    # Rank 0 is the one that speaks to the user.
    begin = partial(keep_log, spec, env, redirect=env.rank != 0)
    if env.rank != 0:
        work(spec, env, None, begin=begin)
        return EXIT_OK

    def lead(batches: Sequence[MicroBatch], note: Callable[[Message], None]) -> str | None:
        if not batches:
            work(spec, env, None, has_work=False)
            return None
        note({"event": "launch", "layout": asdict(layout), "threads": spec.threads})
        mine, theirs = queue_link_pair()
        client = threading.Thread(target=_feed, args=(mine, batches, note), name="client")
        client.start()
        try:
            work(spec, env, theirs, begin=begin)
        finally:
            mine.inbox.put(_OVER)
            client.join()
        return None

    return carry_out(prepared, choices, console, lead)


def _layout(prepared: Prepared, world_size: int) -> Layout:
    """The job's layout on so many processes; `replicas: auto` takes what they give."""
    for _ in prepared.reqs():
        pass  # every rank checks the whole job, so that none waits for one that has stopped
    if prepared.machine.devices is not None:
        raise PlanError("torchrun has placed the ranks already; leave it out", place="--devices")
    layout, _ = group_layout(prepared, world_size)
    asked = prepared.job.spec.parallel.replicas
    replicas = world_size // layout.group_size if asked == "auto" else int(asked)
    layout = replace(layout, replicas=max(replicas, 1))
    layout.check_world_size(world_size)
    if (problem := refusal(prepared, Choice(layout=layout))) is not None:
        raise PlanError(problem, place="memory")
    return layout


def _feed(link: QueueLink, batches: Sequence[MicroBatch], note: Callable[[Message], None]) -> None:
    """The client's loop, in a thread of rank 0: submit, listen, and close when all is recorded.

    An error here must not leave the workers waiting for it.
    """
    try:
        _converse(link, Feed(batches), note)
    except BaseException:
        link.send({"op": "stop"})
        raise


def _converse(link: QueueLink, feed: Feed, note: Callable[[Message], None]) -> None:
    closed = False
    while True:
        feed.submit(link.send)
        if feed.done and not closed:
            link.send({"op": "close"})
            closed = True
        event = link.receive(_TURN_S)
        if event is None:
            continue
        if event is _OVER:
            return
        if event["event"] == "record":
            feed.recorded(event["record"]["id"])
        if event["event"] == "fatal" and event["rank"] != 0:  # rank 0 tells its own error
            sys.stderr.write(f"diffbatch: rank {event['rank']}: {printable(event['error'])}\n")
        note(event)
