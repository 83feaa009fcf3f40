"""torchrun whose workers are forks: `python -m diffbatch.worker.agent OPTIONS -m MODULE SPEC`.

Takes torchrun's own command line. It imports what a worker needs once, with torch and diffusers,
and then forks the ranks, so that starting or restarting them takes no second import and the ranks
share the memory of the code. Only for CPU ranks: CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
from pathlib import Path

from diffbatch.worker.spec import WorkerSpec

_MODULES = ("diffbatch.worker.rank", "diffbatch.worker.scheduler")  # with all they import


def main() -> None:
    """Import, then be torchrun's elastic agent until the workers end."""
    gc.disable()  # to search growing modules for garbage takes a fifth of the time of the imports
    from torch.distributed.elastic.multiprocessing.errors import record

    record(_lead)(sys.argv[1:])


def _lead(arguments: list[str]) -> None:
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    from diffbatch.worker.main import serve

    args = parse_args(arguments)  # type: ignore[no-untyped-call]
    config, _, _ = config_from_args(args)
    config.start_method = "fork"
    (spec,) = args.training_script_args
    preload(WorkerSpec.from_json(spec).model_folder)
    gc.freeze()  # the workers' collections leave the shared pages alone
    gc.enable()
    elastic_launch(config, serve)(spec)


def preload(folder: Path) -> None:
    """Import what every worker uses, and the classes that the model's index names.

    A class that is not there or cannot be imported is left to the worker, which tells the user.
    """
    for name in _MODULES:
        importlib.import_module(name)
    index = json.loads((folder / "model_index.json").read_bytes())
    for value in index.values():
        if isinstance(value, list) and value[0] in ("diffusers", "transformers"):
            with contextlib.suppress(ImportError, RuntimeError):
                getattr(importlib.import_module(value[0]), str(value[1]), None)


if __name__ == "__main__":
    main()
