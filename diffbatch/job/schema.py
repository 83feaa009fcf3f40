"""The JSON Schema of the job file: editors complete and check from it."""

from __future__ import annotations

from typing import Any

from diffbatch.job.spec import JobSpec


def job_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a job file; made from the models that check it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **JobSpec.model_json_schema(by_alias=True),
        "title": "diffbatch job file",
    }
