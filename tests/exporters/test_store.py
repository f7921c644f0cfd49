"""What holds for how long: slow values between two looks, and nothing once a thing has gone."""

from __future__ import annotations

from trainvitals.exporters.store import FIRST_SECONDS, LEAST_SECONDS, Store

GPU = {"gpu_index": 0, "gpu_uuid": "GPU-1"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sample(store: Store, clock: Clock, **values: float | str) -> None:
    store.take("gpu", GPU, values, clock.now, 1.0)


def values(store: Store) -> dict[str, object]:
    return dict(store.things()[0].values) if store.things() else {}


def test_a_slow_value_stays_between_the_samples_that_have_it() -> None:
    clock = Clock()
    store = Store("box", clock)
    for second in range(40):
        clock.now += 1.0
        more = {"encoder_percent": 7.0} if second % 5 == 0 else {}
        sample(store, clock, utilization_percent=50.0, **more)
        assert values(store) == {"utilization_percent": 50.0, "encoder_percent": 7.0}


def test_a_value_that_no_longer_comes_is_gone_though_the_gpu_is_not() -> None:
    clock = Clock()
    store = Store("box", clock)
    for _ in range(3):
        clock.now += 1.0
        sample(store, clock, utilization_percent=50.0, fan_speed_percent=30.0)
    for _ in range(int(LEAST_SECONDS) + 2):
        clock.now += 1.0
        sample(store, clock, utilization_percent=50.0)
    assert values(store) == {"utilization_percent": 50.0}


def test_a_value_that_came_once_holds_until_it_could_have_come_again() -> None:
    clock = Clock()
    store = Store("box", clock)
    sample(store, clock, utilization_percent=1.0, pcie_link_width=16)
    for _ in range(int(FIRST_SECONDS) - 1):
        clock.now += 1.0
        sample(store, clock, utilization_percent=1.0)
    assert values(store)["pcie_link_width"] == 16
    clock.now += 2.0
    sample(store, clock, utilization_percent=1.0)
    assert "pcie_link_width" not in values(store)


def test_all_of_a_gpu_that_gives_no_samples_ends() -> None:
    clock = Clock()
    store = Store("box", clock)
    sample(store, clock, utilization_percent=50.0)
    clock.now += LEAST_SECONDS + 0.1
    assert store.things() == []


def test_a_lost_gpu_has_a_state_and_nothing_else() -> None:
    clock = Clock()
    store = Store("box", clock)
    sample(store, clock, utilization_percent=50.0, temperature_celsius=60.0, state="ok")
    sample(store, clock, state="lost")
    assert values(store) == {"state": "lost"}


def test_what_was_scraped_from_others_is_not_served_again() -> None:
    clock = Clock()
    store = Store("box", clock)
    store.take("openmetrics", {"target": "http://x"}, {"node_load1": 1.0}, clock.now, 1.0)
    assert store.things() == []
