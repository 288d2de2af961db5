"""Instances from the first markets that have any: asks offer after offer for what still lacks.

Knows EC2's client and what it answers; must not know Ray.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.aws.aws_clients import aws_errors, error_code
from deployments.aws.capacity_memory import CapacityMemory, Place
from deployments.aws.errors import AwsRefused
from deployments.aws.fleet_request import fleet_request, offer_places
from deployments.aws.launch_config import Offer

logger = logging.getLogger("headwater.fleet_launch")

CAPACITY_CODES = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
        "Unsupported",
    }
)
QUOTA_CODES = frozenset(
    {
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "MaxSpotFleetRequestCountExceeded",
        "VcpuLimitExceeded",
    }
)
_DENIED_CODES = frozenset({"UnauthorizedOperation", "AccessDenied", "UnauthorizedException"})
_THROTTLED_CODES = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why there are fewer instances than asked for."""

    category: str
    """Under 20 characters, as Ray shows it."""
    words: str


class FleetLaunch:
    """``clock`` gives seconds and never goes back."""

    def __init__(self, ec2: Any, memory: CapacityMemory, clock: Callable[[], float]) -> None:
        self._ec2 = ec2
        self._memory = memory
        self._clock = clock

    def run(
        self,
        pool: str,
        offers: tuple[Offer, ...],
        count: int,
        tags: Mapping[str, str],
        new_token: Callable[[], str],
    ) -> tuple[list[str], Shortage | None]:
        """Ids of tagged instances; with fewer than ``count`` also why."""
        launched: list[str] = []
        codes: dict[str, list[str]] = {}
        retry_s: list[float] = []
        for offer in offers:
            lacking = count - len(launched)
            if lacking == 0:
                break
            asked = codes.setdefault(offer.market.value, [])
            places = []
            for place in offer_places(offer):
                refusal = self._memory.in_force(place, self._clock())
                if refusal is None:
                    places.append(place)
                else:
                    asked.append(f"{refusal.code} lately")
                    retry_s.append(refusal.until_s)
            if not places:
                continue
            request = fleet_request(offer, places, lacking, tags, new_token())
            try:
                with aws_errors(f"launch nodes of pool {pool} ({offer.market})"):
                    answer = self._ec2.create_fleet(**request)
            except AwsRefused as error:
                code = error_code(error.__cause__) if isinstance(error.__cause__, Exception) else ""
                if code not in CAPACITY_CODES | QUOTA_CODES:
                    return launched, Shortage(_category(code), f"{error}{_remedy(code)}")
                asked.append(code)
                retry_s += [self._refused(place, code) for place in places]
                continue
            for fault in answer.get("Errors", []):
                code = fault.get("ErrorCode", "?")
                asked.append(code)
                retry_s += [
                    self._refused(place, code) for place in _places_of(fault, offer, places)
                ]
            try:
                launched += self._tagged(answer, offer, tags)
            except AwsRefused as error:
                return launched, Shortage("TaggingFailed", f"pool {pool}: {error}")
        if len(launched) >= count:
            return launched, None
        return launched, self._shortage(pool, count, len(launched), codes, retry_s)

    def _refused(self, place: Place, code: str) -> float:
        return self._memory.refused(place, code, self._clock()).until_s

    def _tagged(
        self, answer: Mapping[str, Any], offer: Offer, tags: Mapping[str, str]
    ) -> list[str]:
        """Raises `AwsRefused` when they can't be tagged: then they are ended."""
        ids: list[str] = []
        zones = {subnet: zone for zone, subnet in offer.subnets.items()}
        for part in answer.get("Instances", []):
            ids += part["InstanceIds"]
            chosen = part.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
            zone = zones.get(chosen.get("SubnetId", ""))
            if zone is not None:
                kind = part.get("InstanceType") or chosen.get("InstanceType", "")
                self._memory.granted(Place(offer.market, kind, zone))
        if not ids:
            return []
        try:
            with aws_errors(f"tag the new instances {', '.join(ids)} (they are ended)"):
                self._ec2.create_tags(
                    Resources=ids, Tags=[{"Key": key, "Value": tags[key]} for key in tags]
                )
        except AwsRefused:
            # Ray would never hear of them.
            with aws_errors(f"end the untagged instances {', '.join(ids)}: end them by hand"):
                self._ec2.terminate_instances(InstanceIds=ids)
            raise
        return ids

    def _shortage(
        self,
        pool: str,
        count: int,
        num_launched: int,
        codes: Mapping[str, list[str]],
        retry_s: list[float],
    ) -> Shortage:
        found = {code.removesuffix(" lately") for market in codes.values() for code in market}
        category = "QuotaExceeded" if found and found <= QUOTA_CODES else "InsufficientCapacity"
        markets = "; ".join(
            f"{market}: {', '.join(dict.fromkeys(asked)) or 'fewer than asked for'}"
            for market, asked in codes.items()
        )
        words = f"pool {pool}: {num_launched} of {count} nodes. {markets}."
        if found & QUOTA_CODES:
            words += " A quota of the account is used up: raise it in Service Quotas."
        if retry_s:
            words += f" Asked again in {max(min(retry_s) - self._clock(), 0.0):.0f} s."
        return Shortage(category, words)


def _places_of(fault: Mapping[str, Any], offer: Offer, places: list[Place]) -> list[Place]:
    """Those a fault speaks of; all when it names none."""
    overrides = fault.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    kind, subnet = overrides.get("InstanceType"), overrides.get("SubnetId")
    return [
        place
        for place in places
        if kind in (None, place.instance_type) and subnet in (None, offer.subnets[place.zone])
    ]


def _category(code: str) -> str:
    if code in _DENIED_CODES:
        return "Unauthorized"
    if code in _THROTTLED_CODES:
        return "Throttled"
    if code.startswith("InvalidLaunchTemplate"):
        return "BadLaunchTemplate"
    return (code or "AwsUnreachable")[:19]


def _remedy(code: str) -> str:
    if code in _THROTTLED_CODES:
        return ": EC2 has too many requests, Ray asks again"
    if code.startswith("InvalidLaunchTemplate"):
        return ": apply Terraform again, and restart the head"
    return ""
