"""Reads an environment's data and tables of prices from disk.

Knows neither what they mean nor what they cost.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from deployments.cost.cluster_plan import ClusterPlan, cluster_plan
from deployments.cost.errors import ClusterFileUnfit, PriceFileUnfit
from deployments.cost.price_table import PriceTable, price_table

CLUSTER_FILE = "cluster.auto.tfvars.json"


def read_plan(folder: Path) -> ClusterPlan:
    """Raises `ClusterFileUnfit`."""
    path = folder / CLUSTER_FILE
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ClusterFileUnfit(
            f"{path}: {error.strerror}: give --cluster the folder of an environment, such as "
            "terraform/environments/prod"
        ) from error
    except ValueError as error:
        raise ClusterFileUnfit(f"{path} is no JSON: {error}") from error
    return cluster_plan(content, str(path))


def read_prices(over: Path | None = None) -> PriceTable:
    """The project's own, with the file ``over`` laid on it. Raises `PriceFileUnfit`."""
    own = files("deployments.cost") / "prices.yaml"
    layers, names = [_yaml(own.read_text("utf-8"), "prices.yaml")], ["prices.yaml"]
    if over is not None:
        try:
            text = over.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PriceFileUnfit(f"{over} can't be read: {error}") from error
        layers.append(_yaml(text, str(over)))
        names.append(str(over))
    return price_table(layers, names)


def _yaml(text: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise PriceFileUnfit(f"{name} is no YAML: {words}") from error
