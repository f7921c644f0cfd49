"""What projects and tokens may ship, over several gateways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from engines import Engine
from made_runs import write_alike
from shipped import address_of
from starlette.testclient import TestClient

from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import quotas, tokens, wire
from trainvitals.fleet.audit import Audit
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.tokens import Limits, Tokens
from trainvitals.fleet.wire import FileRange

DAY = 86_400
NOON = 1_800_014_400.0 // DAY * DAY + DAY / 2


class Site:
    """Two gateways of one store, and what is shipped through either in turn."""

    def __init__(self, store: Store, place: Path, stack: ExitStack) -> None:
        self.file = place / "tokens.json"
        self.audit = place / "audit.jsonl"
        self.now = NOON
        self.headers = {
            name: {"Authorization": f"Bearer {tokens.add(self.file, name, 'write', ['*'])}"} for name in ("a", "b")
        }
        self.clients = []
        self.quotas = []
        for _ in range(2):
            audit = Audit(self.audit)
            known = Tokens(self.file, lambda what, name, audit=audit: audit.note(what, name=name))
            gateway = Gateway(store, known, audit=audit)
            assert gateway._quotas is not None
            gateway._quotas._clock = lambda: self.now
            self.quotas.append(gateway._quotas)
            self.clients.append(stack.enter_context(TestClient(gateway.make_app())))
        self.requests = 0

    def share(self) -> None:
        """As every gateway does every few seconds."""
        self.now += quotas.SHARE_SECONDS
        for counted in self.quotas:
            counted._write()

    def ship(self, project: str, run: str, size: int = 0, token: str = "a") -> httpx.Response:
        """A piece of a text, or a document if it is empty."""
        self.requests += 1
        frame = FileRange(f"{self.requests}.log", "bytes", bytes(size), 0, "1")
        body = wire.encode_frames([frame], compress=False)
        client = self.clients[self.requests % 2]
        return client.post(address_of(project, run), content=body, headers=self.headers[token])


@pytest.fixture
def site(
    debian: Engine, prepare: Callable[[Engine], ClickHouse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setattr(gateways, "GATHER_SECONDS", 0.0)
    with ExitStack() as stack:
        yield Site(Store(prepare(debian)), tmp_path, stack)


@pytest.mark.promise("a sealed file of few bytes with very many rows", "its rows count for the quota")
def test_a_sealed_file_is_charged_for_its_rows(site: Site, tmp_path: Path) -> None:
    tokens.set_limits(site.file, Limits(gb_per_day=0.0005), project="vision")
    name = "training_metrics_20261118_060000.rank0.parquet"
    data = write_alike(tmp_path / name, 200_000).read_bytes()
    assert len(data) < 20_000
    body = wire.encode_frames([FileRange(f"segments/{name}", "segment", data)], compress=False)
    answer = site.clients[0].post(address_of("vision", "r"), content=body, headers=site.headers["a"])
    assert answer.status_code == 200
    site.share()
    assert [site.ship("vision", "r", 10).status_code for _ in site.clients] == [429, 429]


def test_bytes_of_a_day_are_counted_over_all_gateways_and_begin_anew(site: Site) -> None:
    tokens.set_limits(site.file, Limits(gb_per_day=0.001), project="vision")
    assert [site.ship("vision", "r", 400_000).status_code for _ in range(3)] == [200] * 3, "the last one passes it"
    site.share()
    refused = site.ship("vision", "r", 10)
    assert refused.status_code == 429 and refused.json() == {
        "error": "project 'vision' has shipped its 0.001 GB for today (UTC)", "quota": True
    }  # fmt: skip
    assert int(refused.headers["Retry-After"]) == DAY - site.now % DAY
    site.share()
    assert site.ship("vision", "r", 10).status_code == 429, "at the other one, too"
    assert site.ship("speech", "r", 10).status_code == 200
    assert b"over_quota_total 1" in site.clients[0].get("/metrics").content
    site.now += DAY / 2
    assert site.ship("vision", "r", 400_000).status_code == 200
    tokens.set_limits(site.file, Limits(), project="vision")
    site.ship("vision", "r", 800_000)
    assert site.ship("vision", "r", 10).status_code == 200, "a limit that is gone"
    noted = [json.loads(line)["did"] for line in site.audit.read_text().splitlines()]
    assert noted.count("limits changed") == 4, "both gateways saw both changes"


def test_a_token_has_limits_of_its_own(site: Site) -> None:
    assert tokens.set_limits(site.file, Limits(gb_per_day=0.001, runs_per_day=2), token="a")
    assert not tokens.set_limits(site.file, Limits(), token="nobody")
    assert [site.ship(project, run, 600_000).status_code for project, run in (("p", "1"), ("q", "2"))] == [200, 200]
    site.share()
    assert "the token 'a' has shipped" in site.ship("p", "1", 10).json()["error"]
    assert site.ship("p", "1", 10, token="b").status_code == 200
    tokens.set_limits(site.file, Limits(runs_per_day=2), token="a")
    site.share()
    assert "has reached its limit of runs" in site.ship("p", "3", 10).json()["error"]
    assert site.ship("p", "1", 10).status_code == 200, "what is there goes on"
    tokens.add(site.file, "a", "write", ["*"])
    assert Tokens(site.file).find_limits("p") == Limits()
    assert [access.limits.runs_per_day for access in Tokens(site.file).list().values() if access.name == "a"] == [2]


def test_runs_are_limited_by_day_and_in_all(site: Site) -> None:
    def ship(run: str) -> int:
        site.share()
        return site.ship("vision", run, 1).status_code

    tokens.set_limits(site.file, Limits(runs_per_day=3, runs=4), project="*")
    assert [ship(run) for run in "01234"] == [200] * 3 + [429] * 2
    assert site.ship("speech", "0", 1).status_code == 200, "each project has this limit for itself"
    site.now += DAY
    assert [ship(run) for run in "01234"] == [200] * 4 + [429]
    refused = site.ship("vision", "5", 1)
    assert refused.json()["quota"] and int(refused.headers["Retry-After"]) == quotas.RUNS_SECONDS


def test_a_new_run_whose_request_fails_takes_nobodys_place(site: Site) -> None:
    tokens.set_limits(site.file, Limits(runs=2), project="vision")
    for client in site.clients:
        for number in range(5):
            address = address_of("vision", f"broken-{number}")
            assert client.post(address, content=b"junk", headers=site.headers["a"]).status_code == 422
    site.share()
    assert [site.ship("vision", run, 1).status_code for run in "01"] == [200] * 2


def test_a_project_without_a_limit_asks_the_engine_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(quotas.Quotas, "_read_others", lambda self: asked.append("others"))
    monkeypatch.setattr(quotas.Quotas, "_count_runs", lambda *_: asked.append("runs"))
    assert site.ship("vision", "r", 100).status_code == 200
    assert asked == []
