"""Saves what the pipeline makes, on one background thread, while the next micro-batch runs.

Per output: temporary name, fsync, check, hash, final name, then its manifest record. So a final
name is always a complete file, and a record always has its file.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from diffbatch.errors import DiffbatchError, ReqError, WorkerError
from diffbatch.log import get_logger
from diffbatch.output.atomic import file_sha256, sync_file, sync_folder
from diffbatch.output.embed import embedded
from diffbatch.output.formats import suffix_of
from diffbatch.output.layout import NOT_SAVED, frames_file, temp_name
from diffbatch.output.media import check_whole, is_flat, write_media, write_npy
from diffbatch.output.part import ManifestPart
from diffbatch.req import OutputBatch, Record, Req

if TYPE_CHECKING:
    from diffbatch.req import Frames

logger = get_logger(__name__)

# So many saves failing one after the other mean that the folder is at fault: stop making pictures.
MAX_FAILURES_IN_A_ROW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """Who writes, and where. `model` goes into the files: a label, never a path."""

    root: Path  # the run folder
    name: str  # of the manifest part; one process per name
    model: str
    replica: int = 0
    ranks: tuple[int, ...] = (0,)
    attempt: int = 0  # how often the worker group was restarted in this run
    max_queued: int = 2  # micro-batches of pixels waiting in memory


@dataclass(frozen=True, slots=True)
class _Item:
    batch: OutputBatch
    write: Collection[str] | None
    keep_frames: bool


class OutputWriter:
    """`put` micro-batches, then `close`; or use it as a context manager.

    An output that cannot be saved becomes a failed record and the writer goes on. It stops, and
    `put` and `close` raise, when a record cannot be written, when `MAX_FAILURES_IN_A_ROW` saves in
    a row fail, or on a bug. `on_record` is called on the writer's thread, after the record is safe.
    `mark` names the saving of an output in a trace, where one is taken.
    """

    def __init__(
        self,
        config: WriterConfig,
        on_record: Callable[[Record], None] | None = None,
        mark: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._config = config
        self._on_record = on_record
        self._mark = mark
        self.stage_s = {"save": 0.0}  # of all outputs; to be read when closed
        self._part = ManifestPart(config.root, config.name)
        self._queue: queue.Queue[_Item | None]
        self._queue = queue.Queue(maxsize=config.max_queued)
        self._error: BaseException | None = None
        self._closed = False
        self._failures_in_a_row = 0
        self._told: set[str] = set()
        self._num_temps = 0
        self._thread = threading.Thread(target=self._work, name="output-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> OutputWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except (DiffbatchError, OSError) as own:
            if error is None:
                raise
            if own is not error:
                logger.error("while closing after another error: %s", own)

    def put(
        self, batch: OutputBatch, write: Collection[str] | None = None, keep_frames: bool = False
    ) -> None:
        """Queue a micro-batch; waits while `max_queued` are ahead of it.

        `write` limits it to these ids: Reqs that only ran along are not saved again.
        `keep_frames` also saves frames/<id>.npy for each.
        """
        self._raise_error()
        if self._closed:
            raise RuntimeError("this writer is closed")
        self._queue.put(_Item(batch, write, keep_frames))

    def close(self) -> None:
        """Save what is queued, end the thread, and raise what stopped it if something did."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._part.close()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """The thread. After an error it goes on taking, so that `put` never waits for ever."""
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue
            try:
                self._write_batch(item)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that calls put
                self._error = error

    def _write_batch(self, item: _Item) -> None:
        batch, write = item.batch, item.write
        for req, frames, error in zip(batch.reqs, batch.frames, batch.errors, strict=True):
            if write is not None and req.id not in write:
                continue
            if error is None and frames is not None:
                with self._mark("saving"):
                    record = self._save(req, frames, item)
            else:
                record = self._failed(req, error or "the pipeline gave no frames", batch)
                self._append(record)
            if self._on_record is not None:
                self._on_record(record)
            if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                raise WorkerError(
                    f"{self._failures_in_a_row} outputs in a row could not be saved in "
                    f"{self._config.root} ({record.error}); mend that and run again: "
                    "what is done stays done"
                )

    def _save(self, req: Req, frames: Frames, item: _Item) -> Record:
        """Write file and record of one Req; a failed record where the file cannot be written."""
        temp = (self._config.root / req.file).parent / self._temp_name(suffix_of(req.file))
        try:
            record = self._write_file(req, frames, item, temp)
            self._failures_in_a_row = 0
        except ReqError as error:
            record = self._failed(req, str(error), item.batch)
        except OSError as error:
            reason = error.strerror or str(error)
            self._failures_in_a_row += 1
            self._tell_once(req, reason)
            record = self._failed(req, f"{NOT_SAVED}{reason}", item.batch)
        finally:
            with suppress(OSError):
                temp.unlink(missing_ok=True)
        self._append(record)
        return record

    def _write_file(self, req: Req, frames: Frames, item: _Item, temp: Path) -> Record:
        started = time.perf_counter()
        root, final = self._config.root, self._config.root / req.file
        num_frames, height, width = frames.shape[:3]
        temp.parent.mkdir(parents=True, exist_ok=True)
        meta = embedded(req, self._config.model, height, width)
        write_media(temp, frames, meta, req.params.fps)
        check_whole(temp)
        sync_file(temp)
        if item.keep_frames:
            self._write_frames(root / frames_file(req.id), frames)
        record = replace(
            self._record(req, "ok", item.batch),
            sha256=file_sha256(temp),
            bytes=temp.stat().st_size,
            height=height,
            width=width,
            num_frames=num_frames,
            flat=is_flat(frames),
            stage_s={**item.batch.stage_s, "save": round(time.perf_counter() - started, 4)},
        )
        self.stage_s["save"] = round(self.stage_s["save"] + record.stage_s["save"], 4)
        self._part.announce(record)
        temp.replace(final)
        sync_folder(final.parent)
        return record

    def _failed(self, req: Req, error: str, batch: OutputBatch) -> Record:
        return replace(self._record(req, "failed", batch), error=error)

    def _write_frames(self, final: Path, frames: Frames) -> None:
        final.parent.mkdir(exist_ok=True)
        temp = final.parent / self._temp_name("npy")
        try:
            write_npy(temp, frames)
            temp.replace(final)
        finally:
            temp.unlink(missing_ok=True)

    def _temp_name(self, suffix: str) -> str:
        self._num_temps += 1
        return temp_name(self._config.name, os.getpid(), self._num_temps, suffix)

    def _record(self, req: Req, status: str, batch: OutputBatch) -> Record:
        return Record(
            id=req.id,
            index=req.index,
            status=status,
            file=req.file,
            prompt=req.prompt,
            seed=req.seed,
            params=req.params.as_dict(),
            replica=self._config.replica,
            ranks=self._config.ranks,
            attempt=self._config.attempt,
            stage_s=batch.stage_s,
            peak_memory_bytes=batch.peak_memory_bytes,
        )

    def _append(self, record: Record) -> None:
        try:
            self._part.append(record)
        except OSError as error:
            raise WorkerError(
                f"{self._part.path} cannot be written: {error.strerror}; "
                "free the space or mend the folder, then run again"
            ) from error

    def _tell_once(self, req: Req, reason: str) -> None:
        """A full disk fails every output: one message says so, the records hold the rest."""
        if reason not in self._told:
            self._told.add(reason)
            logger.error(
                "%s is not saved: %s (further ones only in the manifest)", req.file, reason
            )
