"""What the scopes of a key allow."""

import ipaddress

import pytest

from fairlane.quotas.api_keys import Scopes
from fairlane.quotas.field_checks import FieldError
from tests.support.counted import calls_of


def test_scopes_allow_all_that_they_do_not_name() -> None:
    everything = Scopes.parse(None)

    assert (everything.models, everything.lanes, everything.endpoints) == (None, None, None)
    assert everything.allows_address("not an address")


def test_a_scope_allows_only_what_it_names() -> None:
    scopes = Scopes.parse({"models": ["a", "b", "a"], "lanes": [], "endpoints": ["/v1/models"]})

    assert (scopes.models, scopes.lanes, scopes.endpoints) == (("a", "b"), (), ("/v1/models",))


def test_a_key_acts_for_nobody_unless_it_says_for_whom() -> None:
    assert not Scopes.parse(None).may_act_as("acme")
    assert not Scopes.parse({"act_as": []}).may_act_as("acme")
    named = Scopes.parse({"act_as": ["acme"]})
    assert (named.may_act_as("acme"), named.may_act_as("beta"), named.may_act_as("acm")) == (True, False, False)
    with pytest.raises(FieldError):
        Scopes.parse({"act_as": ["*"]})


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("2001:db8::5", True),
        ("2001:db9::5", False),
        ("10.1.2", False),
        ("", False),
    ],
)
def test_a_network_scope_looks_at_the_callers_address(address: str, allowed: bool) -> None:
    scopes = Scopes.parse({"cidrs": ["10.0.0.0/8", "2001:db8::/32"]})

    assert scopes.allows_address(address) is allowed


def test_networks_are_read_once_and_not_with_each_request() -> None:
    scopes = Scopes.parse({"cidrs": [f"10.{number}.0.0/16" for number in range(250)]})
    scopes.allows_address("192.168.0.1")

    assert not calls_of(ipaddress.ip_network, lambda: scopes.allows_address("192.168.0.1"))
