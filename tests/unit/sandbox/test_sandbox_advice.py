"""What `retcon doctor` says to do, of machines that are not this one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retcon.sandbox.doctor import Machine, Probe, list_advice
from retcon.sandbox.jail.confine.isolate import HELP

CONTAINER = Machine("linux", 15000, None, True, root=True)


def test_a_container_is_started_with_other_profiles_as_a_capability_alone_does_not_help() -> None:
    said = list_advice(CONTAINER, Probe("landlock"))[0]
    assert "--security-opt seccomp=" in said
    assert "apparmor=unconfined" in said
    assert "SYS_ADMIN" not in said
    assert "in a container its seccomp and AppArmor profiles have to allow them as well" in HELP["namespaces"]


@pytest.mark.parametrize(("root", "version"), [(True, "5.13"), (False, "6.2")])
def test_landlock_is_advised_from_the_kernel_on_that_has_it_for_this_user(root: bool, version: str) -> None:
    machine = replace(CONTAINER, user_namespaces=0, landlock=False, root=root)
    (said,) = (line for line in list_advice(machine, Probe("rlimits")) if "lsm=" in line)
    assert f"({version} or later)" in said


def test_a_cgroup_is_advised_where_the_worker_had_none_with_its_reason() -> None:
    assert list_advice(CONTAINER, Probe("namespaces")) == []
    (said,) = list_advice(CONTAINER, Probe("namespaces", no_cgroup="cgroup /a does not pass on memory"))
    assert "not limited by the kernel (cgroup /a does not pass on memory)" in said
    assert "RETCON_CGROUP" in said
