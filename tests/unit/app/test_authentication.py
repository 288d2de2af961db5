"""Which key opens what."""

import pytest

from app.authentication import Authenticator
from app.errors import AuthenticationError, PermissionDeniedError


def test_an_admin_key_opens_everything_and_others_not_what_is_the_operators() -> None:
    authenticator = Authenticator(["user"], ["admin"])
    authenticator.check(b"Bearer user")
    authenticator.check(b"Bearer admin")
    authenticator.check_admin(b"Bearer admin")
    with pytest.raises(PermissionDeniedError):
        authenticator.check_admin(b"Bearer user")
    for wrong in (None, b"Bearer nobody", b"Basic admin"):
        with pytest.raises(AuthenticationError):
            authenticator.check_admin(wrong)


def test_without_any_keys_everything_is_open() -> None:
    Authenticator([]).check(None)
    Authenticator([]).check_admin(None)


def test_admin_keys_alone_leave_the_api_open() -> None:
    authenticator = Authenticator([], ["admin"])
    authenticator.check(None)
    with pytest.raises(AuthenticationError):
        authenticator.check_admin(None)
