"""What can go wrong between this machine and a cluster on AWS, one line each for whoever typed the
command: what was wrong, and what to do.
"""


class ClusterError(Exception):
    """Any of these."""


class AwsRefused(ClusterError):
    """AWS can't be reached, or doesn't let these credentials do it."""


class ClusterUnknown(ClusterError):
    """No such cluster in this region, or its card can't be read."""


class FileUnfit(ClusterError):
    """A file can't be served by this cluster."""


class ConfigUnknown(ClusterError):
    """A version of what was deployed that isn't there, or isn't what it was."""


class DeployConflict(ClusterError):
    """Somebody else deploys onto the same cluster."""


class TunnelBroken(ClusterError):
    """No way to the head."""


class ServeAway(ClusterError):
    """Serve's REST API doesn't answer, or not as it should."""


class ServeRefused(ClusterError):
    """Serve doesn't take what it was given."""


class NotRunning(ClusterError):
    """Serve took it, but not every application runs."""
