from __future__ import annotations

import math

import numpy as np

from trainvitals.views.tui.tracks import KEPT, Track, Tracks, owner_of


def test_a_long_history_stays_small_and_keeps_its_peak_and_its_nan() -> None:
    track = Track("loss", owner_of("training", {}))
    for step in range(10 * KEPT):
        track.add(step, 99.0 if step == 777 else math.nan if step == 5000 else 1.0)
    x, y = track.points()
    assert len(x) <= 2 * KEPT
    assert np.nanmax(y) == 99.0
    assert np.isnan(y).any()
    assert x[-1] == 10 * KEPT - 1


def test_a_step_that_goes_back_is_put_where_it_belongs() -> None:
    track = Track("loss", owner_of("training", {}))
    for step in (1, 2, 5, 3, 4):
        track.add(step, float(step))
    x, y = track.points()
    assert x.tolist() == y.tolist() == [1, 2, 3, 4, 5]


def test_arrays_that_were_handed_out_do_not_change() -> None:
    track = Track("loss", owner_of("training", {}))
    track.add(0, 1.0)
    x, _ = track.points()
    track.add(1, 2.0)
    assert x.tolist() == [0]
    assert track.last(5) == (1.0, 2.0)


def test_gpus_come_in_the_order_of_their_numbers() -> None:
    tracks = Tracks()
    for index in (10, 2, 0):
        tracks.track("m", owner_of("gpu", {"gpu_index": index, "gpu_uuid": f"u{index}"}), "gpu", "m")
    assert [track.owner.label for track in tracks.of_group("gpu", "m")] == ["GPU 0", "GPU 2", "GPU 10"]
    assert tracks.names("gpu") == {"m"}


def test_a_slice_is_named_after_its_gpu() -> None:
    assert owner_of("gpu", {"gpu_index": 6, "mig_index": 2, "gpu_uuid": "MIG-x"}).label == "GPU 6:2"
