"""Which tier is had on machines that grant less: the kernel is made to refuse, by a filter on the process that asks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from retcon.sandbox.jail.confine.seccomp import ARCHITECTURES
from retcon.sandbox.pool import SandboxPool

pytestmark = pytest.mark.skipif(os.uname().machine not in ARCHITECTURES, reason="no filter for this machine")

ASK = """
import asyncio, sys, warnings
from retcon.core.errors import SandboxUnavailable, SessionLost
from retcon.sandbox.jail.confine import seccomp
from retcon.sandbox.jail.confine import seccomp as instructions
from retcon.sandbox.jail import kernel
from retcon.sandbox.pool import SandboxPool

async def ask(tier):
    async with SandboxPool(workers=1, tier=tier) as sandbox:
        USE

kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
for name, number in (("CAP_SETUID", 7), ("CAP_SYS_ADMIN", 21)):
    if name in sys.argv:
        sys.argv.remove(name)
        kernel.prctl(24, number)  # PR_CAPBSET_DROP: gone for what is started from here
errors = {"landlock_create_ruleset": 38}
rules = [(name, [(6, 0, 0, instructions.ERRNO | errors.get(name, 1))]) for name in sys.argv[2:]]
seccomp.Filter(rules).apply()
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    try:
        asyncio.run(ask(sys.argv[1] or None))
    except SandboxUnavailable as error:
        print("refused:", error)
for warning in warned:
    print(warning.category.__name__, warning.message)
"""


CALL = """
        result = await sandbox.run("print(6 * 7)")
        print(sandbox.tier, result.tier, result.stdout.strip())
"""
SESSION = """
        session = await sandbox.session()
        result = await session.run("1")
        print(result.status, result.tier, result.stderr)
        try:
            await session.run("1")
        except SessionLost as lost:
            print(f"{lost.by_own_code=}")
"""


def ask(tier: str, *refused: str, use: str = CALL) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", ASK.replace("USE", use.strip()), tier, *refused],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def has(tier: str) -> bool:
    return not ask(tier).startswith("refused:")


def test_the_best_tier_is_taken() -> None:
    best = next(tier for tier in ("namespaces", "landlock", "rlimits") if has(tier))
    if best == "rlimits":
        pytest.skip("this machine has neither namespaces nor landlock")
    assert ask("") == f"{best} {best} 42\n"


def test_landlock_is_taken_where_namespaces_are_refused() -> None:
    if not has("landlock"):
        pytest.skip("this machine has no landlock")
    assert ask("", "unshare") == "landlock landlock 42\n"


def test_where_neither_can_be_had_it_says_why_and_what_to_do() -> None:
    said = ask("", "unshare", "landlock_create_ruleset")
    assert said.startswith("refused:")
    for part in (
        "namespaces: unshare: Operation not permitted",
        "user.max_user_namespaces",
        "landlock: Landlock: Function not implemented",
        "lsm=",
        "tier='rlimits'",
    ):
        assert part in said


@pytest.mark.parametrize(("tier", "refused"), [("namespaces", "unshare"), ("landlock", "landlock_create_ruleset")])
def test_a_tier_that_is_asked_for_and_cannot_be_had_is_refused_by_name(tier: str, refused: str) -> None:
    said = ask(tier, refused)
    assert said.startswith("refused:")
    assert f"tier {tier!r} is unavailable here" in said


def test_the_weakest_tier_is_had_on_request_and_says_what_it_leaves_open() -> None:
    said = ask("rlimits", "unshare", "landlock_create_ruleset")
    assert "rlimits rlimits 42\n" in said
    assert "SandboxWarning sandbox tier 'rlimits' limits calls and does not contain them. Open to them: files" in said


def test_without_landlock_the_weakest_tier_keeps_its_own_processes_and_says_what_is_open() -> None:
    code = "\nfor pid in pids:\n    try: print(open(f'/proc/{pid}/mem', 'rb+'))\n    except OSError: print('kept')"
    use = f"""
        pids = [sandbox.worker.pid, *sandbox.fleet.zygotes.values()]
        print((await sandbox.run(f"{{pids=}}" + {code!r})).stdout)
"""
    said = ask("rlimits", "landlock_create_ruleset", use=use)
    assert said.startswith("kept\nkept\n")
    assert ("memory, environment and priority of the user's others are open" in said) == (os.getuid() != 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give calls another user")
@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_calls_run_as_one_of_the_users_that_were_given_each_worker_its_own(tier: str) -> None:
    async def users() -> set[int]:
        async with SandboxPool(workers=3, tier=tier, uids=range(1_200_000, 1_200_050)) as sandbox:  # type: ignore[arg-type]
            code = "import os, time\ntime.sleep(0.5)\nprint(*{*os.getresuid(), *os.getresgid()})"
            return {int(result.stdout) for result in await asyncio.gather(*(sandbox.run(code) for _ in range(3)))}

    if not has(tier):
        pytest.skip(f"this machine has no {tier}")
    found = asyncio.run(users())
    assert found <= set(range(1_200_000, 1_200_050))
    assert len(found) > 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives calls another user")
@pytest.mark.parametrize("tier", ["landlock", "rlimits"])
def test_a_tier_in_which_calls_could_not_become_their_user_is_refused(tier: str) -> None:
    if not has(tier):
        pytest.skip(f"this machine has no {tier}")
    said = ask(tier, "CAP_SETUID")
    assert said.startswith(f"refused: a sandbox worker could not set itself up: tier {tier!r} is unavailable here")
    assert "calls cannot become user" in said


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives calls another user")
def test_what_keeps_a_sessions_interpreter_from_starting_is_not_its_codes_fault() -> None:
    said = ask("rlimits", "chown", "fchownat", use=SESSION)
    assert said.startswith("infrastructure None "), said
    assert "the interpreter could not be started: PermissionError" in said
    assert "lost.by_own_code=False" in said
