"""Which clusters there are in a region, and the card of one."""

import json

from pydantic import ValidationError

from deployments.aws.aws_clients import AwsClients, aws_errors
from deployments.aws.cluster_card import CARD_FORMAT, ClusterCard, card_parameter
from deployments.aws.errors import AwsRefused, ClusterUnknown

_PREFIX = "/headwater/"
_CARD = "/card"


def read_card(clients: AwsClients, cluster: str) -> ClusterCard:
    """Raises `ClusterUnknown`, `AwsRefused`."""
    try:
        name = card_parameter(cluster)
    except ValueError as error:
        raise ClusterUnknown(str(error)) from error
    with aws_errors(f"read {name} in {clients.region}"):
        try:
            value = clients.ssm.get_parameter(Name=name)["Parameter"]["Value"]
        except clients.ssm.exceptions.ParameterNotFound:
            raise ClusterUnknown(_unknown(clients, cluster)) from None
    return _parse(value, name, clients.region)


def cluster_names(clients: AwsClients) -> list[str]:
    """Of the region. Raises `AwsRefused`."""
    filters = [{"Key": "Name", "Option": "BeginsWith", "Values": [_PREFIX]}]
    with aws_errors(f"list parameters in {clients.region}"):
        pages = clients.ssm.get_paginator("describe_parameters").paginate(ParameterFilters=filters)
        names = [entry["Name"] for page in pages for entry in page["Parameters"]]
    cards = (name for name in names if name.endswith(_CARD))
    return sorted(name.removeprefix(_PREFIX).removesuffix(_CARD) for name in cards)


def _unknown(clients: AwsClients, cluster: str) -> str:
    message = f"there is no cluster {cluster!r} in {clients.region}"
    try:
        names = cluster_names(clients)
    except AwsRefused:
        return f"{message}: check the name and --region"
    if not names:
        return f"{message}, nor any other: give the cluster's --region, or apply Terraform first"
    return f"{message}, but {', '.join(names)}: correct the name or --region"


def _parse(value: str, name: str, region: str) -> ClusterCard:
    try:
        data = json.loads(value)
    except ValueError as error:
        raise ClusterUnknown(f"{name} is not JSON: apply Terraform again") from error
    found = data.get("format") if isinstance(data, dict) else None
    if found != CARD_FORMAT:
        raise ClusterUnknown(
            f"{name} has the format {found!r}, this headwater reads {CARD_FORMAT}: use the version "
            "of headwater that the cluster was made with, or apply Terraform again"
        )
    try:
        card = ClusterCard.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClusterUnknown(f"{name}: {where}: {first['msg']}: apply Terraform again") from error
    if card.region != region:
        raise ClusterUnknown(
            f"{name} is of a cluster in {card.region}: give --region {card.region}"
        )
    return card
