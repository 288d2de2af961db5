"""Instances from the first markets that have any: asks offer after offer for what still lacks.

Knows EC2's client and what it answers; must not know Ray.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deployments.aws.aws_clients import aws_errors, error_code
from deployments.aws.capacity_memory import CapacityMemory, Place
from deployments.aws.errors import AwsRefused
from deployments.aws.fleet_request import fleet_request, offer_places
from deployments.aws.launch_config import Offer
from deployments.aws.launch_report import (
    UNREACHABLE,
    LaunchReport,
    is_for_all_markets,
    is_shortage,
)


class FleetLaunch:
    """Of one cluster, used by many threads. ``clock`` gives seconds and never goes back."""

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
    ) -> LaunchReport:
        """EC2 tags instances as it launches them, or launches none. ``new_token`` gives another
        one each time."""
        report = LaunchReport(pool, count)
        for offer in offers:
            if report.lacking <= 0:
                break
            places = self._open_places(offer, report)
            if not places:
                continue
            request = fleet_request(offer, places, report.lacking, tags, new_token())
            try:
                with aws_errors("ask EC2 for instances"):
                    answer = self._ec2.create_fleet(**request)
            except AwsRefused as error:
                code, words = _refusal(error)
                self._take_error(code, words, offer, places, report)
                if is_for_all_markets(code):
                    break
            else:
                self._take_answer(answer, offer, places, report)
        return report

    def _open_places(self, offer: Offer, report: LaunchReport) -> list[Place]:
        places = []
        for place in offer_places(offer):
            refusal = self._memory.in_force(place, self._clock())
            if refusal is None:
                places.append(place)
            else:
                report.left_out(offer.market, refusal.code, refusal.until_s)
        return places

    def _take_answer(
        self, answer: Mapping[str, Any], offer: Offer, places: list[Place], report: LaunchReport
    ) -> None:
        for part in answer.get("Instances", []):
            report.came(offer.market, part["InstanceIds"])
            from_places = _places_of(part, offer, places)
            if len(from_places) == 1:
                self._memory.granted(from_places[0])
        # After the grants: what gave some and refused the rest is empty now.
        for fault in answer.get("Errors", []):
            self._take_error(
                fault.get("ErrorCode", "?"),
                fault.get("ErrorMessage", ""),
                offer,
                _places_of(fault, offer, places),
                report,
            )
        report.came(offer.market, [])

    def _take_error(
        self, code: str, words: str, offer: Offer, places: list[Place], report: LaunchReport
    ) -> None:
        if not is_shortage(code):
            report.failed(offer.market, code, words)
            return
        for place in places:
            refusal = self._memory.refused(place, code, self._clock())
            report.refused(offer.market, code, refusal.until_s)


def _refusal(error: AwsRefused) -> tuple[str, str]:
    """EC2's code and words; of an error that isn't EC2's, the error's own."""
    cause = error.__cause__
    code = error_code(cause) if isinstance(cause, Exception) else ""
    if not code:
        return UNREACHABLE, str(error)
    response: Mapping[str, Any] = getattr(cause, "response", {})
    return code, str(response.get("Error", {}).get("Message", ""))


def _places_of(part: Mapping[str, Any], offer: Offer, places: list[Place]) -> list[Place]:
    """Those that a part of an answer speaks of; all when it names none."""
    overrides = part.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    kind = part.get("InstanceType") or overrides.get("InstanceType")
    subnet = overrides.get("SubnetId")
    return [
        place
        for place in places
        if kind in (None, place.instance_type) and subnet in (None, offer.subnets[place.zone])
    ]
