"""What the markets answered to one request for instances, and why fewer came than asked for.

Knows EC2's error codes; must not know its client, nor Ray.
"""

from dataclasses import dataclass, field

from deployments.aws.launch_config import Market

_CAPACITY_CODES = frozenset(
    {
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientVolumeCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
        "Unsupported",
    }
)
_QUOTA_CODES = frozenset(
    {
        "InstanceLimitExceeded",
        "MaxSpotFleetRequestCountExceeded",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
    }
)
_DENIED_CODES = frozenset({"AccessDenied", "UnauthorizedException", "UnauthorizedOperation"})
_THROTTLED_CODES = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})
_CREDENTIAL_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
UNREACHABLE = "AwsUnreachable"
"""Code of a fault for which EC2 gave none."""
_MAX_CATEGORY_LEN = 19
_MAX_WORDS_LEN = 300


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why there are fewer instances than asked for."""

    category: str
    """Under 20 characters, as Ray shows it."""
    words: str


@dataclass(slots=True)
class LaunchReport:
    """Of one request for ``count`` instances of a pool. Times are of any clock."""

    pool: str
    count: int
    launched: list[str] = field(default_factory=list)
    """Ids of instances."""
    fault_words: list[str] = field(default_factory=list)
    _answers: dict[Market, list[str]] = field(default_factory=dict)
    _fault_codes: list[str] = field(default_factory=list)
    _shortage_codes: set[str] = field(default_factory=set)
    _retry_s: list[float] = field(default_factory=list)

    @property
    def lacking(self) -> int:
        return self.count - len(self.launched)

    def came(self, market: Market, ids: list[str]) -> None:
        self._answers.setdefault(market, [])
        self.launched += ids

    def refused(self, market: Market, code: str, until_s: float) -> None:
        """A shortage: not asked again before ``until_s``."""
        self._refused(market, code, code, until_s)

    def left_out(self, market: Market, code: str, until_s: float) -> None:
        """It wasn't asked, because of an earlier shortage."""
        self._refused(market, code, f"{code} lately", until_s)

    def failed(self, market: Market, code: str, words: str) -> None:
        """Not for want of capacity: somebody has to mend it."""
        said = " ".join(words.partition("Encoded authorization")[0].split())[:_MAX_WORDS_LEN]
        told = f"{code} ({said.rstrip('. ')}){_remedy(code)}"
        self._answers.setdefault(market, []).append(told)
        self._fault_codes.append(code)
        if (told_with_market := f"{market}: {told}") not in self.fault_words:
            self.fault_words.append(told_with_market)

    def shortfall(self, now_s: float) -> Shortfall | None:
        """None: all came."""
        if self.lacking <= 0:
            return None
        markets = "; ".join(
            f"{market}: {', '.join(dict.fromkeys(answers)) or 'fewer than asked for'}"
            for market, answers in self._answers.items()
        )
        words = f"pool {self.pool}: {len(self.launched)} of {self.count} nodes. {markets}."
        if self._shortage_codes & _QUOTA_CODES:
            words += " A quota of the account is used up: raise it in Service Quotas."
        if self._retry_s:
            words += f" Asked again in {max(min(self._retry_s) - now_s, 0.0):.0f} s."
        return Shortfall(self._category(), words)

    def _category(self) -> str:
        if self._fault_codes:
            return _fault_category(self._fault_codes[0])
        if self._shortage_codes and self._shortage_codes <= _QUOTA_CODES:
            return "QuotaExceeded"
        return "NoCapacity"

    def _refused(self, market: Market, code: str, told: str, until_s: float) -> None:
        self._answers.setdefault(market, []).append(told)
        self._shortage_codes.add(code)
        self._retry_s.append(until_s)


def is_shortage(code: str) -> bool:
    """Of capacity or of a quota: it passes."""
    return code in _CAPACITY_CODES | _QUOTA_CODES


def is_for_all_markets(code: str) -> bool:
    """Asking another market would end the same way."""
    return code == UNREACHABLE or code in _THROTTLED_CODES | _CREDENTIAL_CODES


def _fault_category(code: str) -> str:
    if code in _DENIED_CODES:
        return "Unauthorized"
    if code in _THROTTLED_CODES:
        return "Throttled"
    if code in _CREDENTIAL_CODES:
        return "BadCredentials"
    if code.startswith("InvalidLaunchTemplate"):
        return "BadLaunchTemplate"
    return code[:_MAX_CATEGORY_LEN]


def _remedy(code: str) -> str:
    if code in _DENIED_CODES:
        return ": apply Terraform again, it makes the head's role"
    if code in _THROTTLED_CODES:
        return ": EC2 has too many requests of this account, Ray asks again"
    if code in _CREDENTIAL_CODES:
        return ": look at the head's instance profile and its clock"
    if code.startswith("InvalidLaunchTemplate"):
        return ": apply Terraform again, and restart the head"
    return ""
