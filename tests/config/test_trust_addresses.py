"""Addresses that came with a run folder."""

import pytest

from hydrl.config.trust import check_addresses
from hydrl.errors import UserError


@pytest.mark.parametrize("group", ["collector", "eval"])
def test_an_address_of_a_run_folder_needs_trust_unless_typed(group: str) -> None:
    key = f"{group}.address"
    values = {group: {"address": "10.0.0.1:6379"}}
    with pytest.raises(UserError, match=rf"{key}=10\.0\.0\.1:6379 .*trust=true"):
        check_addresses(values, "resume=run", ["seed=1"])
    check_addresses(values, "resume=run", [f"{key}=10.0.0.1:6379"])
    check_addresses({group: {"address": "auto"}}, "resume=run")
    check_addresses({group: {"address": None}}, "resume=run")
