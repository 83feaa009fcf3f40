"""TextEncodingStage and ImageEncodingStage: what a request says -> embeddings and latents."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from diffbatch.pipeline.stage import ParallelType, PipelineStage

_CACHE_BYTES = 512 * 1024**2


class TextEncodingStage(PipelineStage):
    """Prompt and negative prompt -> embeddings, one request at a time.

    Encoding one text at a time keeps the embedding of a prompt independent of its neighbours.
    """

    name = "text_encoding"
    parallel = ParallelType.ONE_RANK


class ImageEncodingStage(PipelineStage):
    """Conditioning image -> embeddings or latents. Without blocks for models that take no image."""

    name = "image_encoding"
    parallel = ParallelType.ONE_RANK


class EncodeOnce:
    """Remembers what an encoder returned, so that each distinct text is encoded once.

    Sits on `module.forward` and compares the forward's inputs, so it serves every encoder and
    every prompt template alike; the empty negative prompt of a whole job costs one forward. The
    least recently used results go when `limit_bytes` is reached.
    """

    def __init__(self, forward: Callable[..., Any], limit_bytes: int = _CACHE_BYTES) -> None:
        self._forward = forward
        self._limit_bytes = limit_bytes
        self._results: OrderedDict[bytes, Any] = OrderedDict()
        self._held_bytes = 0
        self.num_forwards = 0  # that really ran

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The encoder's output for these inputs; callers must not change it in place."""
        key = _digest((args, sorted(kwargs.items())))
        if key in self._results:
            self._results.move_to_end(key)
            return self._results[key]
        result = self._forward(*args, **kwargs)
        self.num_forwards += 1
        self._keep(key, result)
        return result

    def _keep(self, key: bytes, result: Any) -> None:
        self._results[key] = result
        self._held_bytes += _num_bytes(result)
        while self._held_bytes > self._limit_bytes and len(self._results) > 1:
            _, oldest = self._results.popitem(last=False)
            self._held_bytes -= _num_bytes(oldest)


def encode_once(module: torch.nn.Module) -> EncodeOnce:
    """Put an `EncodeOnce` on `module` and return it."""
    memory = EncodeOnce(module.forward)
    # wraps keeps the signature: some pipelines inspect it to choose what they pass.
    forward = functools.wraps(module.forward)(lambda *args, **kwargs: memory(*args, **kwargs))
    module.forward = forward
    return memory


def _digest(value: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    _update(digest, value)
    return digest.digest()


def _update(digest: hashlib.blake2b, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _update(digest, item)
    elif isinstance(value, dict):
        _update(digest, sorted(value.items()))
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())


def _num_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):  # transformers' ModelOutput is one
        return sum(_num_bytes(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_num_bytes(item) for item in value)
    return 0
