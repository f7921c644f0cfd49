"""No secret survives, nothing else is lost, and nothing raises."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainvitals.redaction import CUT, REDACTED, Secrecy, find_secrecy, free_key, redact, redact_command, redact_text

# Planted secrets carry this mark; it must never be seen again.
CANARY = "CaNaRy4711"


# -- keys

NAMES_OF_SECRETS = """
    password passwd PASSWORD db_password smtpPassword PGPASSWORD pwd MYSQL_PWD passphrase smtp_pass pass
    secret client_secret clientSecret AWS_SECRET_ACCESS_KEY jwt_secret optimizer.secret
    token HF_TOKEN hf_token hfToken HFTOKEN authToken use_auth_token github-token access_tokens refresh_token
    api_key apikey apiKey API-KEY X-Api-Key OPENAI_API_KEY model/api_key wandb_key AWS_ACCESS_KEY_ID
    private_key ssh_private_key signing_key credential credentials GOOGLE_CREDENTIALS
    auth Authorization oauth webhook slack_webhook_url SENTRY_DSN dsn cookie Cookies bearer GITHUB_PAT
    connection_string
"""
OTHER_NAMES = """
    max_tokens num_tokens tokens tokens_per_second tokenizer tokenizer_name token_type pad_token eos_token
    next_token_loss max_new_tokens special_tokens author authority authored path pattern patience patch compass
    bypass forward_pass pass_rate key keys monkey keyboard lr PWD auth_mode token_file password_length author_email
    dsnap cookiecutter compat secrétaire _ пароли 🔑
"""


@pytest.mark.parametrize("key", NAMES_OF_SECRETS.split())
def test_a_key_that_names_a_secret_is_known(key: str) -> None:
    assert find_secrecy(key)
    assert redact({key: CANARY}) == {key: REDACTED}


@pytest.mark.parametrize("key", ["", *OTHER_NAMES.split()])
def test_a_key_that_names_no_secret_is_left_alone(key: str) -> None:
    assert not find_secrecy(key)
    assert redact({key: "plain words"}) == {key: "plain words"}


def test_numbers_stay_except_under_a_password() -> None:
    value = {
        "token": 5,
        "auth": 1.5,
        "api_key": None,
        "use_auth_token": True,
        "password": 1234,
        "pin_password": 0.5,
    }
    assert redact(value) == {**value, "password": REDACTED, "pin_password": REDACTED}


def test_switches_and_model_tokens_stay_under_a_token() -> None:
    value = {
        "token": "<|user|>",
        "user_token": "[USER]",
        "use_auth_token": "true",
        "hf_token": "",
        "a_token": "17",
    }
    assert redact(value) == value
    assert redact({"password": "<|user|>"}) == {"password": REDACTED}


def test_everything_under_a_secret_key_goes() -> None:
    value = {"auth": {"user": "a", "parts": ["b", ("c", {"d": b"e"})], "port": 80}, "lr": 1}
    assert redact(value) == {
        "auth": {"user": REDACTED, "parts": [REDACTED, (REDACTED, {"d": REDACTED})], "port": 80},
        "lr": 1,
    }


def test_more_keys_can_be_named() -> None:
    value = {"Internal_Host": "a", "internal_port": 80, "external": "b"}
    assert redact(value, extra=["internal_*"]) == {
        "Internal_Host": REDACTED,
        "internal_port": REDACTED,
        "external": "b",
    }


def test_a_name_beside_its_value_counts_as_a_key() -> None:
    assert redact([{"name": "API_KEY", "value": "x"}, {"name": "LR", "value": "y"}]) == [
        {"name": "API_KEY", "value": REDACTED},
        {"name": "LR", "value": "y"},
    ]
    assert redact({"headers": [("X-Api-Key", "x"), ("Accept", "y")]}) == {
        "headers": [("X-Api-Key", REDACTED), ("Accept", "y")]
    }


# -- shapes

SHAPES = [
    f"hf_{CANARY}abcdefghijklmnopq",
    f"sk-{CANARY}abcdefghijklmnop",
    f"sk-proj-{CANARY}-abcdef_ghijklm",
    f"sk-ant-api03-{CANARY}-xyz_abcdefghi",
    f"sk_live_{CANARY}abcdefghij",
    f"ghp_{CANARY}abcdefghijklmnop",
    f"gho_{CANARY}abcdefghijklmnop",
    f"github_pat_11AA_{CANARY}abcdefghijk",
    f"glpat-{CANARY}-abcdefghij",
    "AKIACANARY4711ABCDEF",
    f"xoxb-123456-{CANARY}",
    f"xoxp-{CANARY}-abcdef",
    f"AIzaSy{CANARY}abcdefghijklmnopqrstuvw",
    f"npm_{CANARY}abcdefghijklmnopqrstuvwxyz",
    f"nvapi-{CANARY}-abcdefghijklmnop",
    f"pypi-AgEIcHlwaS5vcmc{CANARY}abcdefghijklmnopqrstuvwx",
    f"SG.{CANARY}abcdefghij.{CANARY}abcdefghijklmnopqrstuv",
    f"1234567890:AA{CANARY}abcdefghijklmnopqrstuvwxyz",
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}abc.{CANARY}def",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\nabc\n-----END OPENSSH PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
    f"postgres://me:{CANARY}@db.example:5432/x",
    f"redis://:{CANARY}@cache.example",
    f"https://me:p@{CANARY}@host.example/path",
    f"https://me:a/b{CANARY}@host.example/path",
    f"https://{CANARY}@github.com/a/b.git",
    f"https://hooks.slack.com/services/T0/B0/{CANARY}",
    f"https://discord.com/api/webhooks/123/{CANARY}",
    f"https://ptb.discordapp.com/api/webhooks/123/{CANARY}",
    f"https://corp.webhook.office.com/webhookb2/{CANARY}",
    f"https://api.telegram.org/bot{CANARY}/sendMessage",
    f"https://chat.example.com/hooks/{CANARY}",
    f"slack://TokenA/TokenB/{CANARY}",
    f"tgram://{CANARY}/chat",
    f"https://storage.example/file?X-Amz-Credential={CANARY}&X-Amz-Signature={CANARY}&x=1",
    f"https://maps.example/api?key={CANARY}",
    f"https://host.example/api?x=1&access_token={CANARY}#top",
    f"Authorization: Bearer {CANARY}",
    f"authorization: Basic {CANARY} and more",
    f"Bearer {CANARY}abcdefgh",
    f"Cookie: a=b; session={CANARY}",
    f"password={CANARY}",
    f"Server=db;Password={CANARY};Port=1",
    f"password = '{CANARY} with spaces'",
    f'{{"api_key": "{CANARY} \\" {CANARY}", "lr": 1}}',
    f'{{\\"api_key\\": \\"{CANARY}\\"}}',
    f"Config(lr=1, token='{CANARY}')",
    f"export HF_TOKEN={CANARY}",
    f"env:OPENAI_API_KEY={CANARY}",
    f"python train.py --api-key {CANARY} --lr 1",
    f"python train.py --hub_token={CANARY}",
    f'password="{CANARY}',
]


@pytest.mark.parametrize("secret", SHAPES)
@pytest.mark.parametrize("around", ["{}", "see {} here", "a\n{}\nb", "({})", "x={}", "'{}'"])
def test_a_secret_is_known_by_its_shape_anywhere_in_a_text(secret: str, around: str) -> None:
    cleaned = redact_text(around.format(secret))
    assert CANARY not in cleaned
    assert "CANARY" not in cleaned
    assert REDACTED in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss: 0.5, lr: 1e-3, step=100",
        "max_tokens=512 tokenizer=gpt2 eos_token=</s> num_tokens: 7",
        "git@github.com:someone/project.git",
        "http://localhost:8080/metrics",
        "tcp://10.0.0.1:29500",
        "http://node1:9400/metrics?module=a@b",
        "s3://bucket/checkpoints/step-1000.pt",
        "author: somebody, key: value",
        "meta-llama/Llama-3.1-8B-Instruct",
        "sk-learn and hf_hub and ghp_ and AKIA",
        "d670460b4b4aece5915caf5c68d12f560a9fe3e4",
        "2026-01-02T03:04:05.678Z",
        "C:\\Users\\x\\train.py",
        "the bearer of news",
        "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
        "token 3 of 5",
        "ünïcödé: ✓",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text
    assert redact({"x": [text]}) == {"x": [text]}


def test_the_rest_of_the_text_stays() -> None:
    assert redact_text(f"postgres://me:{CANARY}@db:5432/x?lr=1") == f"postgres://{REDACTED}@db:5432/x?lr=1"
    assert redact_text(f"a=1 token={CANARY} b=2") == f"a=1 token={REDACTED} b=2"
    assert redact_text(f"?token={CANARY}&page=2") == f"?token={REDACTED}&page=2"


# -- commands


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --api-key X --lr 0.1", "python train.py --api-key [redacted] --lr 0.1"),
        ("train --token=X -v", "train --token=[redacted] -v"),
        ("train --password 1234", "train --password [redacted]"),
        ("train --max-tokens 100 --token 5", "train --max-tokens 100 --token 5"),
        ("train --token --verbose", "train --token --verbose"),
        ("train --token -v x", "train --token -v x"),
        ("train --token -Xyz x", "train --token [redacted] x"),
        ("env HF_TOKEN=X A=b train", "env HF_TOKEN=[redacted] A=b train"),
        (
            "train model.api_key=X +hub.token=X lr=1",
            "train model.api_key=[redacted] +hub.token=[redacted] lr=1",
        ),
        ("train --url https://me:X@host/a", "train --url https://[redacted]@host/a"),
        ("train --header 'Authorization: Bearer X'", "train --header 'Authorization: [redacted]'"),
        ("train --tokenizer gpt2 --author me", "train --tokenizer gpt2 --author me"),
        ("bash -c 'train --api-key X --lr 1'", "bash -c 'train --api-key [redacted] --lr 1'"),
    ],
)
def test_a_command_keeps_all_but_its_secrets(command: str, expected: str) -> None:
    assert redact_command(shlex.split(command)) == shlex.split(expected)
    assert redact({"args": shlex.split(command)}) == {"args": shlex.split(expected)}


def test_more_flags_can_be_named() -> None:
    assert redact_command(["x", "--site", "a", "--site=b", "c"], extra=["site"]) == [
        "x",
        "--site",
        REDACTED,
        f"--site={REDACTED}",
        "c",
    ]


# -- any input at all


class Hostile(Mapping[str, object]):
    """A mapping of a user's that fails when it is read, as a config with a missing value may."""

    def __getitem__(self, key: str) -> object:
        raise RuntimeError("missing mandatory value")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("cannot be read")

    def __len__(self) -> int:
        return 1


class Proxy:
    """Raises when asked for its class, as an unbound proxy does."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("not bound")


def test_odd_things_are_returned_or_cut() -> None:
    proxy, thing = Proxy(), object()
    assert redact(proxy) is proxy
    assert redact([thing, 1, None, 2.5]) == [thing, 1, None, 2.5]
    assert redact({"token": thing}) == {"token": REDACTED}
    assert redact({"a": Hostile(), "b": 1}) == {"a": CUT, "b": 1}
    assert redact({1: "x", None: "y", ("t",): "z"}) == {1: "x", None: "y", ("t",): "z"}
    assert redact({"a": {"b", "c"}, "d": frozenset({"e"})}) == {"a": {"b", "c"}, "d": frozenset({"e"})}


def test_bytes_with_a_secret_go_and_others_stay() -> None:
    assert redact([b"plain \xff", f"token={CANARY}".encode()]) == [b"plain \xff", REDACTED]
    assert redact(bytearray(b"plain")) == bytearray(b"plain")


def test_a_value_that_contains_itself_is_cut_there() -> None:
    value: dict[str, Any] = {"lr": 1}
    value["self"] = value
    value["list"] = [value, "x"]
    assert redact(value) == {"lr": 1, "self": CUT, "list": [CUT, "x"]}


def test_the_same_value_twice_is_no_cycle() -> None:
    shared = ["x"]
    assert redact([shared, shared]) == [["x"], ["x"]]


def test_a_bottomless_value_is_cut() -> None:
    value: Any = "x"
    for _ in range(10_000):
        value = [value]
    cleaned, depth = redact(value), 0
    while isinstance(cleaned, list):
        cleaned, depth = cleaned[0], depth + 1
    assert cleaned == CUT
    assert depth > 10


def test_values_in_values_do_not_multiply() -> None:
    value: Any = [CANARY]
    for _ in range(40):
        value = [value, value, value]
    assert CUT in json.dumps(redact({"token": value}))


def test_keys_that_become_one_do_not_hide_each_other() -> None:
    cleaned = redact({f"hf_{CANARY}abcdefghijklmno{n}": n for n in range(3)})
    assert sorted(cleaned.values()) == [0, 1, 2]
    assert CANARY not in str(cleaned)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "://a:",
        "eyJ-",
        "-sk-",
        "a=",
        'a="',
        'password="',
        "https://x/",
        "--a ",
        '"\\',
        "password: '",
        "é\n",
        "password=",
        "cookie:",
    ],
)
def test_long_texts_of_any_kind_get_through(piece: str) -> None:
    assert isinstance(redact_text(piece * (50_000 // len(piece))), str)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.sampled_from(["token", "name", "value", "lr"]) | st.integers(), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES)
def test_any_value_is_answered_and_its_form_is_kept(value: Any) -> None:
    cleaned = redact(value)
    assert cleaned == REDACTED or type(cleaned) is type(value)
    if isinstance(value, (list, tuple, dict)):
        assert len(cleaned) == len(value)


@settings(deadline=None)
@given(st.text())
@example("a" * 2000 + "=" * 2000)
@example("password='" + "\\" * 999)
def test_any_text_is_answered_and_asking_again_changes_nothing(text: str) -> None:
    cleaned = redact_text(text)
    assert redact_text(cleaned) == cleaned


SECRET_KEYS = st.sampled_from(["password", "api_key", "HF_TOKEN", "clientSecret", "x-webhook-url", "dsn"])
PLANTED = st.sampled_from(SHAPES)


NOISE = st.sampled_from(
    [
        "password",
        "token",
        "=",
        ":",
        "'",
        '"',
        "://",
        "@",
        "/",
        "--",
        "Bearer",
        REDACTED,
        "\\",
        "a",
        "1",
        "&",
        "?",
    ]
)


@settings(deadline=None)
@given(st.lists(PLANTED | NOISE, max_size=8))
def test_no_planted_secret_survives_beside_others_in_a_text(pieces: list[str]) -> None:
    assert CANARY not in redact_text(" ".join(pieces))


@settings(deadline=None)
@given(
    st.recursive(
        PLANTED | st.dictionaries(SECRET_KEYS, st.just(CANARY), min_size=1),
        lambda inner: (
            st.lists(inner | VALUES, min_size=1)
            | st.dictionaries(st.text(max_size=8), inner, min_size=1)
            | st.dictionaries(SECRET_KEYS, inner, min_size=1)
        ),
        max_leaves=12,
    )
)
@pytest.mark.promise("secrets planted anywhere in a value", "none survives redaction")
def test_no_planted_secret_survives(value: Any) -> None:
    cleaned = repr(redact(value))
    assert CANARY not in cleaned
    assert "CANARY" not in cleaned


@settings(deadline=None)
@given(st.lists(PLANTED | st.text(max_size=10) | st.sampled_from(["--token", "--api-key", "-p", "--lr"])))
def test_no_planted_secret_survives_in_a_command(argv: list[str]) -> None:
    cleaned = redact_command(argv)
    assert len(cleaned) == len(argv)
    assert CANARY not in " ".join(cleaned)


def test_levels_are_ordered_so_that_the_stricter_one_wins() -> None:
    assert max(Secrecy.TEXT, Secrecy.NUMBERS_TOO) is Secrecy.NUMBERS_TOO
    assert redact({"token": {"password": 1234, "count": 5}}) == {"token": {"password": REDACTED, "count": 5}}


def test_of_very_many_keys_that_become_one_each_gets_the_next_number() -> None:
    taken: dict[str, None] = {}
    for _ in range(20_000):
        taken[free_key("cut", taken)] = None
    assert list(taken) == ["cut", *(f"cut ({number})" for number in range(2, 20_001))]
    assert free_key("a", {"a": 1, "a (3)": 1}) == "a (2)"
