"""What a user may type for a machine, and what is refused before any program sees it."""

from __future__ import annotations

import pytest

from trainvitals.errors import SettingError
from trainvitals.lab.places import Place, machine_of, parse_place, parse_places


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("gpu1", Place("gpu1", "ssh", "gpu1")),
        ("alice@gpu3", Place("alice@gpu3", "ssh", "alice@gpu3")),
        ("gpu-1.lab.example", Place("gpu-1.lab.example", "ssh", "gpu-1.lab.example")),
        ("gpu2:/data/my runs", Place("gpu2", "ssh", "gpu2", "/data/my runs")),
        ("gpu2:~/runs", Place("gpu2", "ssh", "gpu2", "~/runs")),
        ("10.0.0.7", Place("10.0.0.7", "ssh", "10.0.0.7")),
        ("[fe80::1]", Place("fe80::1", "ssh", "fe80::1")),
        ("http://gpu4:8080", Place("gpu4:8080", "http", "http://gpu4:8080")),
        ("https://gpu4/", Place("gpu4", "http", "https://gpu4")),
        ("local", Place("local", "local")),
    ],
)
def test_what_names_a_machine(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.promise(
    "a machine's name with shell characters, or that is an option of ssh",
    "it is refused before any program sees it",
)
@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-oProxyCommand=touch /tmp/x",
            "--",
            "gpu1;id",
            "gpu1 id",
            "$(id)",
            "`id`",
            "gpu1|id",
            "gpu1&",
            "gpu1\nid",
        ),
        *(
            "gpu1'",
            'gpu1"',
            "gpu1\\",
            "gpu1>x",
            "gpu1:22",
            "gpu1:runs",
            "a@b@c",
            "-x@gpu1",
            "gpu1\x1b[2J",
            "%h",
            "gpu*",
        ),
        *("alice@-gpu1", "@gpu1", "gpu1:/runs\nid", "ftp://gpu1", "http://", "http://gpu1/path", "http://gpu1?x=1"),
        *("http://gpu 1", "http://gpu1:99999", "http://-x"),
    ],
)
def test_what_names_none_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="is not") as caught:
        parse_place(text)
    assert "\x1b" not in str(caught.value) and "such as" in str(caught.value)


def test_a_token_is_given_by_reference_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU4", "https://s3cret-token@gpu4:8080")
    place = parse_place("env:GPU4")
    assert (place.name, place.target, place.token) == ("gpu4:8080", "https://gpu4:8080", "s3cret-token")
    assert "s3cret" not in repr(place)
    with pytest.raises(SettingError, match="command line") as caught:
        parse_place("https://s3cret-token@gpu4:8080")
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("GPU4", "s3cret-token")
    with pytest.raises(SettingError, match="env:GPU4") as caught:
        parse_place("env:GPU4")
    assert "s3cret" not in str(caught.value)


def test_each_machine_is_there_once_and_has_a_name_of_its_own() -> None:
    found = parse_places(["gpu1", "gpu2", "gpu1", "gpu1:/a", "gpu1:/b"])
    assert [(place.name, place.folder) for place in found] == [
        ("gpu1", ""),
        ("gpu2", ""),
        ("gpu1-2", "/a"),
        ("gpu1-3", "/b"),
    ]


def test_a_run_is_of_the_machine_with_the_longest_name_that_fits() -> None:
    names = ["gpu1", "gpu1:8080", "gpu2"]
    keys = ["gpu1:a", "gpu1:8080:a", "gpu2:8080:a", "gpu10:a", "a"]
    assert [machine_of(key, names) for key in keys] == ["gpu1", "gpu1:8080", "gpu2", "", ""]
