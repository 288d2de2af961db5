"""Prices, each with where it was read, and how one table is laid over another.

Knows no cluster.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deployments.aws.launch_config import Market
from deployments.cost.errors import PriceFileUnfit, PriceMissing

MAX_AGE_DAYS = 365

Usd = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class UsdRange:
    """Per hour."""

    low: float
    typical: float
    high: float

    def times(self, count: int) -> "UsdRange":
        return UsdRange(self.low * count, self.typical * count, self.high * count)

    def plus(self, other: "UsdRange") -> "UsdRange":
        return UsdRange(self.low + other.low, self.typical + other.typical, self.high + other.high)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InstancePrice(_Part):
    """Per hour of one instance."""

    on_demand_usd: Usd
    capacity_block_usd: Usd | None = None
    source: str = Field(min_length=1)


class SpotShare(_Part):
    """Of the on-demand price."""

    low_share: float = Field(ge=0.0, le=1.0)
    typical_share: float = Field(ge=0.0, le=1.0)
    high_share: float = Field(ge=0.0, le=1.0)
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.low_share <= self.typical_share <= self.high_share:
            raise ValueError("low_share, typical_share and high_share must rise")
        return self


class FixedPrice(_Part):
    """Per hour of one."""

    usd: Usd
    source: str = Field(min_length=1)


class Serviceable(_Part):
    """What a node can serve: an assumption, unless somebody measured it."""

    tokens_per_s: float = Field(gt=0.0, allow_inf_nan=False)
    source: str = Field(min_length=1)


class PriceTable(_Part):
    """Of one region, as of one day."""

    date: dt.date
    region: str = Field(min_length=1)
    instances: dict[str, InstancePrice] = {}
    spot: SpotShare | None = None
    fixed: dict[str, FixedPrice] = {}
    serviceable: dict[str, Serviceable] = {}

    def age_days(self, today: dt.date) -> int:
        return (today - self.date).days

    def on_demand_usd(self, instance_type: str) -> float:
        """Per hour. Raises `PriceMissing`."""
        return self._instance(instance_type).on_demand_usd

    def node_usd(self, instance_type: str, market: Market) -> UsdRange:
        """Per hour. Reserved capacity costs as much as on demand, used or not.

        Raises `PriceMissing`.
        """
        price = self._instance(instance_type)
        if market is Market.CAPACITY_BLOCK:
            if price.capacity_block_usd is None:
                raise PriceMissing(
                    f"no price of a capacity block of {instance_type}: put what you paid into a "
                    f"file, 'instances: {{{instance_type}: {{capacity_block_usd: USD}}}}', and "
                    "give it with --prices"
                )
            return UsdRange(*[price.capacity_block_usd] * 3)
        if market is Market.SPOT:
            return self._spot_usd(price.on_demand_usd)
        return UsdRange(*[price.on_demand_usd] * 3)

    def _spot_usd(self, on_demand_usd: float) -> UsdRange:
        if self.spot is None:
            raise PriceMissing(
                "no table says what spot costs: add 'spot: {low_share, typical_share, "
                "high_share, source}' to the file of --prices"
            )
        shares = self.spot.low_share, self.spot.typical_share, self.spot.high_share
        return UsdRange(*(share * on_demand_usd for share in shares))

    def _instance(self, instance_type: str) -> InstancePrice:
        price = self.instances.get(instance_type)
        if price is None:
            raise PriceMissing(
                f"no price of {instance_type}: put 'instances: {{{instance_type}: "
                "{on_demand_usd: USD, source: WHERE}}' into a file and give it with --prices"
            )
        return price


def price_table(layers: list[Any], names: list[str]) -> PriceTable:
    """The later of ``layers`` over the earlier, key by key; ``names`` are said in errors.

    Raises `PriceFileUnfit`.
    """
    for layer, name in zip(layers, names, strict=True):
        if not isinstance(layer, Mapping):
            raise PriceFileUnfit(f"{name} must hold a mapping with the keys of a table of prices")
    try:
        merged: Mapping[str, Any] = {}
        for layer in layers:
            merged = _laid_over(merged, layer)
        return PriceTable.model_validate(merged)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the table"
        raise PriceFileUnfit(f"{names[-1]}: {place}: {fault['msg']}") from error


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _laid_over(old, value)
        else:
            merged[key] = value
    return merged
