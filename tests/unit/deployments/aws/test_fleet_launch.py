"""Offers are asked one after the other, each for what still lacks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from deployments.aws.capacity_memory import FIRST_BACK_OFF_S, CapacityMemory
from deployments.aws.fleet_launch import FleetLaunch
from deployments.aws.launch_config import LaunchTemplate, Market, Offer
from deployments.aws.launch_report import LaunchReport, Shortfall

KIND = "p5.48xlarge"
NO_CAPACITY = "InsufficientInstanceCapacity"
SUBNETS = {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def offer(market: Market, template: str = "lt-0a") -> Offer:
    return Offer(
        market=market,
        launch_template=LaunchTemplate(id=template, version="1"),
        instance_types=(KIND,),
        subnets=SUBNETS,
    )


SPOT, ON_DEMAND = offer(Market.SPOT, "lt-01"), offer(Market.ON_DEMAND, "lt-02")


def gives(num: int, zone: str = "us-east-1a", fault: str = "") -> Answer:
    """At most ``num`` instances, all in one zone; with a fault of that zone besides."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        asked = request["TargetCapacitySpecification"]["TotalTargetCapacity"]
        chosen = {"Overrides": {"InstanceType": KIND, "SubnetId": SUBNETS[zone]}}
        token = request["ClientToken"]
        ids = [f"i-{token}{number}" for number in range(min(num, asked))]
        part = {"LaunchTemplateAndOverrides": chosen, "InstanceType": KIND, "InstanceIds": ids}
        error = {"LaunchTemplateAndOverrides": chosen, "ErrorCode": fault, "ErrorMessage": "Why."}
        return {"Instances": [part] if ids else [], "Errors": [error] if fault else []}

    return answer


def raises(code: str, message: str = "Why.") -> Answer:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": code, "Message": message}}, "CreateFleet")

    return answer


def is_away(request: dict[str, Any]) -> dict[str, Any]:
    raise EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com")


@dataclass
class FakeEc2:
    """Answers of each launch template, the last one again and again."""

    answers: dict[str, list[Answer]]
    requests: list[dict[str, Any]] = field(default_factory=list)

    def create_fleet(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        config = request["LaunchTemplateConfigs"][0]
        answers = self.answers[config["LaunchTemplateSpecification"]["LaunchTemplateId"]]
        return (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Template and number of instances of each request."""
        return [
            (
                request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"][
                    "LaunchTemplateId"
                ],
                request["TargetCapacitySpecification"]["TotalTargetCapacity"],
            )
            for request in self.requests
        ]


@dataclass
class Launcher:
    ec2: FakeEc2
    now_s: float = 0.0

    def __post_init__(self) -> None:
        tokens = count()
        self._new_token = lambda: f"t{next(tokens)}-"
        self._launch = FleetLaunch(self.ec2, CapacityMemory(), lambda: self.now_s)

    def run(self, num: int, *offers: Offer) -> LaunchReport:
        return self._launch.run("h100", offers, num, {"k": "v"}, self._new_token)


def launcher(*spot: Answer, on_demand: Answer | None = None) -> Launcher:
    answers = {"lt-01": list(spot), "lt-02": [on_demand or gives(9)]}
    return Launcher(FakeEc2(answers))


def shortfall(report: LaunchReport) -> Shortfall:
    found = report.shortfall(0.0)
    assert found is not None
    return found


def test_the_first_market_that_has_all_is_the_only_one_asked() -> None:
    asked = launcher(gives(9))
    report = asked.run(2, SPOT, ON_DEMAND)
    assert report.launched == ["i-t0-0", "i-t0-1"]
    assert report.shortfall(0.0) is None
    assert asked.ec2.asked == [("lt-01", 2)]


def test_the_next_market_is_asked_for_the_rest() -> None:
    asked = launcher(gives(3))
    report = asked.run(5, SPOT, ON_DEMAND)
    assert len(set(report.launched)) == 5
    assert report.shortfall(0.0) is None
    assert asked.ec2.asked == [("lt-01", 5), ("lt-02", 2)]


def test_what_gave_some_and_refused_the_rest_is_left_alone_for_a_while() -> None:
    asked = launcher(gives(1, fault=NO_CAPACITY))
    asked.run(2, SPOT)
    asked.run(1, SPOT)
    zones = [request["LaunchTemplateConfigs"][0]["Overrides"] for request in asked.ec2.requests]
    assert [override["SubnetId"] for override in zones[1]] == ["subnet-b"]


def test_refused_everywhere_names_markets_codes_and_when_it_is_tried_again() -> None:
    asked = launcher(raises(NO_CAPACITY), on_demand=raises("VcpuLimitExceeded"))
    assert shortfall(asked.run(2, SPOT, ON_DEMAND)) == Shortfall(
        "NoCapacity",
        "pool h100: 0 of 2 nodes. spot: InsufficientInstanceCapacity; on-demand: "
        "VcpuLimitExceeded. A quota of the account is used up: raise it in Service Quotas. "
        "Asked again in 30 s.",
    )


def test_a_refused_market_is_not_asked_before_its_time_and_then_it_is() -> None:
    asked = launcher(raises(NO_CAPACITY), gives(9))
    asked.run(1, SPOT)
    asked.now_s = FIRST_BACK_OFF_S - 1.0
    report = asked.run(1, SPOT)
    assert len(asked.ec2.requests) == 1
    told = report.shortfall(asked.now_s)
    assert told is not None
    assert told.words == (
        "pool h100: 0 of 1 nodes. spot: InsufficientInstanceCapacity lately. Asked again in 1 s."
    )
    asked.now_s = FIRST_BACK_OFF_S
    assert asked.run(1, SPOT).shortfall(asked.now_s) is None


@pytest.mark.parametrize(
    "code", ["VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded"]
)
def test_quotas_are_told_as_such(code: str) -> None:
    told = shortfall(launcher(raises(code)).run(1, SPOT))
    assert told.category == "QuotaExceeded"
    assert "raise it in Service Quotas. Asked again in 30 s." in told.words


@pytest.mark.parametrize("answer", [raises("Blocked"), gives(0, fault="Blocked")])
def test_a_market_that_fails_does_not_hide_the_next_and_is_told(answer: Answer) -> None:
    asked = launcher(answer)
    report = asked.run(2, SPOT, ON_DEMAND)
    assert len(report.launched) == 2
    assert report.shortfall(0.0) is None
    assert report.fault_words == ["spot: Blocked (Why)"]


@pytest.mark.parametrize("answer", [raises("Blocked"), gives(0, fault="Blocked")])
def test_what_has_to_be_mended_is_asked_again_at_once(answer: Answer) -> None:
    asked = launcher(answer, gives(9))
    assert asked.run(1, SPOT).launched == []
    assert len(asked.run(1, SPOT).launched) == 1


@pytest.mark.parametrize(
    ("code", "category", "words"),
    [
        ("UnauthorizedOperation", "Unauthorized", "apply Terraform again, it makes the head's"),
        ("InvalidLaunchTemplateId.NotFound", "BadLaunchTemplate", "and restart the head"),
        ("InvalidCapacityReservationId.NotFound", "InvalidCapacityRese", "(Why)"),
    ],
)
@pytest.mark.parametrize("in_the_answer", [False, True])
def test_a_fault_is_told_before_shortages_and_with_what_to_do(
    code: str, category: str, words: str, *, in_the_answer: bool
) -> None:
    answer = gives(0, fault=code) if in_the_answer else raises(code)
    told = shortfall(launcher(answer, on_demand=raises(NO_CAPACITY)).run(1, SPOT, ON_DEMAND))
    assert told.category == category
    assert len(told.category) < 20
    assert told.words.startswith(f"pool h100: 0 of 1 nodes. spot: {code} (Why)")
    assert words in told.words
    assert "on-demand: InsufficientInstanceCapacity" in told.words


@pytest.mark.parametrize(
    ("answer", "category", "words"),
    [
        (raises("RequestLimitExceeded"), "Throttled", "too many requests"),
        (raises("RequestExpired"), "BadCredentials", "instance profile and its clock"),
        (raises("UnrecognizedClientException"), "BadCredentials", "instance profile"),
        (is_away, "AwsUnreachable", "AWS can't be reached"),
    ],
)
def test_what_concerns_all_markets_ends_the_request(
    answer: Answer, category: str, words: str
) -> None:
    asked = launcher(answer)
    told = shortfall(asked.run(1, SPOT, ON_DEMAND))
    assert told.category == category
    assert words in told.words
    assert asked.ec2.asked == [("lt-01", 1)]


def test_the_part_of_a_denial_that_nobody_can_read_is_left_out() -> None:
    message = "You may not.\n Encoded authorization failure message: " + "x" * 900
    told = shortfall(launcher(raises("UnauthorizedOperation", message)).run(1, SPOT))
    assert "(You may not): apply" in told.words


def test_a_full_reservation_says_nothing_of_another() -> None:
    first, second = offer(Market.RESERVATION, "lt-01"), offer(Market.RESERVATION, "lt-02")
    asked = launcher(raises("ReservationCapacityExceeded"))
    assert len(asked.run(1, first, second).launched) == 1
    assert len(asked.run(1, first, second).launched) == 1
    assert [template for template, _ in asked.ec2.asked] == ["lt-01", "lt-02", "lt-02"]


def test_spot_refused_to_one_pool_is_not_asked_by_another() -> None:
    asked = launcher(raises(NO_CAPACITY))
    asked.run(1, SPOT)
    asked.run(1, offer(Market.SPOT, "lt-02"))
    assert len(asked.ec2.requests) == 1


def test_instances_are_tagged_by_the_request_that_makes_them() -> None:
    asked = launcher(gives(9))
    asked.run(1, SPOT)
    tags = asked.ec2.requests[0]["TagSpecifications"]
    assert {"ResourceType": "instance", "Tags": [{"Key": "k", "Value": "v"}]} in tags


def test_each_request_has_a_token_of_its_own() -> None:
    asked = launcher(gives(1))
    asked.run(3, SPOT, ON_DEMAND)
    assert len({request["ClientToken"] for request in asked.ec2.requests}) == 2
