"""Whether a run's process is gone, told by real processes."""

from __future__ import annotations

import json
import subprocess
import sys

from tasks.runtime import owner
from tests.conftest import environment
from tests.test_runner import wait_for

PROGRAM = (
    "import json, sys; from tasks.runtime import owner; print(json.dumps(owner.me()), flush=True); sys.stdin.read()"
)


def test_a_process_is_gone_when_it_has_ended_and_not_before():
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    them = json.loads(child.stdout.readline())
    assert them["pid"] == str(child.pid)
    assert not owner.is_gone(them)
    child.kill()
    # A zombie until its parent asks: gone all the same.
    wait_for(lambda: owner.is_gone(them))
    child.wait()
    assert owner.is_gone(them)


def test_another_process_with_the_same_id_is_not_the_owner():
    mine = owner.me()
    assert not owner.is_gone(mine)
    assert owner.is_gone({**mine, "pid_started": str(float(mine["pid_started"]) - 60)})


def test_what_cannot_be_seen_from_here_is_not_called_gone():
    dead = {**owner.me(), "pid": str(2**22 + 1)}
    assert owner.is_gone(dead)
    assert not owner.is_gone({**dead, "host": "elsewhere"})
    assert not owner.is_gone({**dead, "pid_namespace": "pid:[1]"})
    assert not owner.is_gone({})
