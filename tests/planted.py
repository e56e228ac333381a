"""Secrets as users keep them, for a whole run to keep to itself; each value is one that occurs nowhere else."""

from __future__ import annotations

from pathlib import Path

VARIABLES = {
    "HF_TOKEN": "hf_plantedQx71aVbn",
    "OPENAI_API_KEY": "sk-plantedQx72bWcm",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDQX73CXDL",
    "AWS_SECRET_ACCESS_KEY": "plantedQx74dYek/secret+key",
    "AWS_SESSION_TOKEN": "plantedQx75eZfj",
    "MLFLOW_TRACKING_USERNAME": "plantedQx76fAgi",
    "MLFLOW_TRACKING_PASSWORD": "plantedQx77gBhh",
    "GITHUB_TOKEN": "ghp_plantedQx78hCig",
    "WANDB_API_KEY": "plantedQx79iDjf",
    "PIP_INDEX_URL": "https://someone:plantedQx80jEke@packages.invalid/simple",
}
PASSWORD = "plantedQx82lGmc"
REMOTE = f"""
['remote "planted"']
    url = https://someone:{PASSWORD}@storage.invalid/cache
    password = {PASSWORD}
"""
"""A DVC remote, as .dvc/config.local holds it."""
VALUES = tuple(
    part
    for value in (*VARIABLES.values(), PASSWORD)
    for part in [value.partition("someone:")[2].partition("@")[0] or value]
)


def found(folder: Path, *, but: tuple[Path, ...] = ()) -> list[str]:
    """Files below `folder` that hold one of the values, in their bytes or their names, with that value."""
    held = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path not in but):
        data = path.read_bytes() + str(path.relative_to(folder)).encode()
        held += [f"{path.relative_to(folder)}: {value}" for value in VALUES if value.encode() in data]
    return held
