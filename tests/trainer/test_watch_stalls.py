"""The last group of short steps is written when no step follows them."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from waiting import wait_until
from watching import steps

from trainvitals.trainer.run import Run
from trainvitals.trainer.watch import budget, loop

pytestmark = pytest.mark.usefixtures("own_places")


def test_a_loop_that_hangs_has_all_its_steps_written_and_goes_on_as_if_it_had_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "FIRST_STEPS", 5)
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(loop, "WRITE_EVERY", 10**15)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, report=True, budget_percent=1e-9)

    def train(count: int) -> None:
        for _ in range(count):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()

    train(30)
    # The step under way ends with the forward of the next one, so it is not among them.
    wait_until(lambda: [line["step"] for line in steps(run)] == list(range(29)), "the steps before the hang")
    assert watch.moments.light.active
    train(10)
    run.finish()
    written = steps(run)
    assert [line["step"] for line in written] == list(range(40))
    assert "forward_time" not in written[20] and "loss" in written[20]


def test_a_forked_process_neither_waits_for_the_lock_nor_writes_the_steps_of_its_parent(run: Run) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = run.watch(model, optimizer, report=True)
    watch._written = 1 << 62  # so that no step is written for now
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with watch._stalls.lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        if watch._stalls.lock.acquire(timeout=0):
            watch.write_stalled()
            os._exit(len(list(run.folder.glob("training_metrics_*.pid*"))))
        os._exit(99)
    done.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    watch.write_stalled()
    assert len(steps(run)) == 2
