"""Two hosts that see the same thing speak with one voice."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainvitals.alerts.rule_leader import EXPIRES_SECONDS, Claims


def test_who_claims_first_speaks(tmp_path: Path) -> None:
    one, two = Claims(tmp_path, "one"), Claims(tmp_path, "two")
    assert one.take("loss_not_finite")
    assert not two.take("loss_not_finite")
    assert one.take("loss_not_finite")
    assert two.take("loss_spike")
    one.release("loss_not_finite")
    assert two.take("loss_not_finite")


def test_a_claim_survives_a_restart_of_its_host_and_not_its_death(tmp_path: Path) -> None:
    assert Claims(tmp_path, "one").take("rule")
    assert Claims(tmp_path, "one").take("rule")
    assert not Claims(tmp_path, "two").take("rule")
    old = time.time() - EXPIRES_SECONDS - 1
    os.utime(tmp_path / "claims" / "rule", (old, old))
    assert Claims(tmp_path, "two").take("rule")


def test_a_claim_is_of_one_rule_whatever_its_name(tmp_path: Path) -> None:
    one, two = Claims(tmp_path, "one"), Claims(tmp_path, "two")
    long = "the loss of the validation set is above that of the epoch before"
    for first, second in (("损失过高", "温度过高"), (f"{long} last", f"{long}"), ("loss > 3", "loss < 3")):
        assert one.take(first) and two.take(second)
        assert not two.take(first) and not one.take(second)


def test_a_folder_that_cannot_be_written_silences_nobody(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("a file where the folder should be")
    assert Claims(tmp_path, "one").take("rule")
