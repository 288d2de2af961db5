"""The version of this package, as it is told to clients."""

from importlib import metadata


def package_version() -> str:
    try:
        return metadata.version("headwater")
    except metadata.PackageNotFoundError:  # run from a checkout that was not installed
        return "0+unknown"
