"""Why no cost can be told, one line each for whoever typed the command.

CostError
├── ClusterFileUnfit
├── PriceFileUnfit
├── PriceMissing
├── CountUnfit
└── MetricsUnfit
"""


class CostError(Exception):
    """Any of these."""


class ClusterFileUnfit(CostError):
    """The environment's data can't be read, or isn't what Terraform takes."""


class PriceFileUnfit(CostError):
    """A table of prices can't be read, or holds what is no price."""


class PriceMissing(CostError):
    """No table names a price that is needed."""


class CountUnfit(CostError):
    """Nodes or tokens were given for a pool that isn't there, or no number was given."""


class MetricsUnfit(CostError):
    """The gateway's metrics can't be had, or count no tokens."""
