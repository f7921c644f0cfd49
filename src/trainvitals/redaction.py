"""Secrets taken out of what is about to be written: config, command line, environment, addresses.

A value goes if its key names a secret (`api_key`, `HF_TOKEN`, `smtpPassword`, but not `max_tokens`), or if it
looks like one (`hf_…`, `ghp_…`, a private key, a URL with a password), also in the middle of a text. In doubt
it goes: a line less in a config is a nuisance, a token in a shared folder is an incident.

Pure and total: any input gives an answer, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any

REDACTED = "[redacted]"
CUT = "[cut]"
MAX_DEPTH = 50
MAX_VALUES = 100_000


class Secrecy(IntEnum):
    """How much of what lies under a key is hidden."""

    NOTHING = 0
    TEXT = 1
    NUMBERS_TOO = 2


# -- keys

# In a key written small and without separators, so that X-Api-Key, apiKey and API_KEY are one.
_PASSWORD = re.compile("passw(?:or)?d|passphrase|passcode|secret")
_SECRET = re.compile(
    "credential|webhook|bearer|connectionstring|(?:api|private|access|account|signing|encryption|ssh|deploy|master"
    "|license|subscription|auth|session|hmac|wandb|openai|anthropic|huggingface|hf|comet|neptune|aws|azure)key"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Short ones only count as a separate word: auth is not in author.
_PASSWORD_WORDS = _words("pwd otp totp")
_SECRET_WORDS = _words("auth authorization oauth dsn cookie cookies jwt pat netrc")
# smtp_pass is a secret, forward_pass is not.
_PASS_OF = _words("db smtp imap mail email user ftp ssh http proxy mysql pg redis admin root")
# The tokens of a language model, pad_token and token_type; any other token is a secret.
_MODEL_TOKEN = _words(
    "pad eos bos unk sep cls mask image video audio special additional extra stop start end max min num n per"
    " next first last new prompt completion input output total decoder forced"
)
_TOKEN_OF_MODEL = _words(
    "type types dropout embedding embeddings classification count length limit level mask merging pooling"
    " shift ratio rate loss accuracy weight weights id ids index position per budget"
)
_SECRET_TOKENS_OF = _words("access api auth refresh session")
# A key that ends so is about a secret and is not one: token_file, auth_mode.
_ABOUT = _words("mode method type enabled timeout ttl file path env length required")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def find_secrecy(key: str) -> Secrecy:
    """What the name of a setting, variable, flag or header means for its value."""
    words = [word.lower() for word in _WORDS.findall(key[:1000])]
    if not words or key == "PWD":  # the shell's name for the current folder
        return Secrecy.NOTHING
    if len(words) > 1 and words[-1] in _ABOUT:
        return Secrecy.NOTHING
    joined = "".join(words)
    if _PASSWORD.search(joined) or not _PASSWORD_WORDS.isdisjoint(words):
        return Secrecy.NUMBERS_TOO
    if _SECRET.search(joined) or not _SECRET_WORDS.isdisjoint(words):
        return Secrecy.TEXT
    before, after = ["", *words], [*words[1:], ""]
    if any(map(_is_secret_word, before, words, after)):
        return Secrecy.TEXT
    return Secrecy.NOTHING


def _is_secret_word(before: str, word: str, after: str) -> bool:
    if word.endswith("pass"):
        owner = word[:-4] or before
        return owner in _PASS_OF or not (owner or after)
    if word.endswith("token"):
        return (word[:-5] or before) not in _MODEL_TOKEN and after not in _TOKEN_OF_MODEL
    return word == "tokens" and before in _SECRET_TOKENS_OF


# -- texts

# Tokens that are recognized by how they begin. Lengths are bounded, here and below, so that no text,
# however odd, takes more than linear time.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}"
    r"|sk-(?=[\w-]{0,200}\d|\w{16})[\w-]{16,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|gl(?:pat|dt|rt|ptt|ft|soat|cbt)-[\w.-]{16,}"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|SG\.[\w-]{16,100}\.[\w-]{16,}"
    r"|(?:npm|gsk|r8|whsec|lsv2|wandb_v1|dckr_pat|dop_v1|shpat)_[\w-]{20,}|dapi[0-9a-f]{32}"
    r"|(?:nvapi|tskey|xai|pplx)-[\w-]{20,}|pypi-[\w-]{40,}"
    r"|\d{8,10}:AA[\w-]{30,}"
    r"|eyJ[\w-]{8,2000}\.[\w-]{4,}(?:\.[\w-]*){0,3}"
    r")"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_URL_PASSWORD = re.compile(r"://[^\s/@:'\"]{0,256}:(?!\d{1,5}(?:[/?#]|$))[^\s'\"]{0,1000}@")
_URL_USER = re.compile(r"(https?://)[^\s/@:'\"?#]{1,1000}@", re.IGNORECASE)
_URL_SIGNATURE = re.compile(r"([?&](?:key|code|sig|signature|x-amz-signature)=)[^\s&#'\"]+", re.IGNORECASE)
# Addresses whose path is the secret: webhooks, and notification services as Apprise writes them.
_URL_PATH = re.compile(
    r"(https?://(?:hooks\.[\w.-]{1,100}/|api\.telegram\.org/bot|[\w.-]{1,100}\.webhook\.[\w.-]{1,100}/)"
    r"|https?://[^\s/'\"]{0,200}/(?:[^\s?'\"]{0,200}/)??(?:web)?hooks?/"
    r"|\b(?:slack|discord|msteams|workflows?|tgram|pover|pbul|join|gotifys?|mmosts?|rockets?|matrixs?|ntfys?|ifttt"
    r"|zulip|signals?|twilio|pagerduty|opsgenie|gchat|guilded|wxteams|prowl|simplepush|sendgrid|mailgun)://)"
    r"[^\s'\"<>]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer[ \t]+)(?=\S{0,100}\d|\S{20})[\w.~+/=-]{8,}", re.IGNORECASE)
_BASIC = re.compile(r"\b(basic[ \t]+)[A-Za-z0-9+/]{16,}={0,2}", re.IGNORECASE)
# The name in name=value, "name": "value", name => value, --name=value and --name value.
_NAME = re.compile(
    r"(?<![A-Za-z0-9_])(?P<flag>--?)?(?P<name>[A-Za-z_][\w.-]{0,99})"
    r"(?:\\?[\"']?[ \t]{0,3}(?:=>|[=:])[ \t]{0,3}|(?(flag)[ \t]{1,3}(?!-)|(?!)))"
)
# Headers extend to the end of the line, or of the quotes around them.
_HEADER = re.compile(r"(?:proxy-)?authorization|(?:set-)?cookie", re.IGNORECASE)
# After a quote that only seems to close, the rest of the word belongs to the value.
_QUOTED = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')[\w.~+/=-]*", re.DOTALL)
_OPENING = re.compile(r"(?:(?:bearer|basic|token)[ \t]+){0,9}\\?[\"']?", re.IGNORECASE)

# What may be under a secret's name and is not one: nothing, a switch, or what is hidden already; and where it
# is not a password, a number or a model's token such as <pad> and [MASK].
_SWITCH = re.compile(r"|true|false|yes|no|on|off|none|null|\[redacted\]", re.IGNORECASE)
_MODEL_VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|<[^<>\s]{0,40}>|\[[A-Z_]{1,20}\]")


def redact_text(text: str) -> str:
    """The text without what looks like a secret in it."""
    # Names first: what takes out an address or a token must not take a name from its value. Only a private key
    # is more than one word, and known as a whole.
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _redact_pairs(text)
    if "://" in text:
        text = _URL_PATH.sub(rf"\1{REDACTED}", text)
        text = _URL_PASSWORD.sub(f"://{REDACTED}@", text)
        text = _URL_USER.sub(rf"\1{REDACTED}@", text)
    text = _URL_SIGNATURE.sub(rf"\1{REDACTED}", text)
    text = _TOKEN.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _BASIC.sub(rf"\1{REDACTED}", text)


def _redact_pairs(text: str) -> str:
    parts = []
    done = position = 0
    line_end, word_end = _Next(text, r"[\r\n]"), _Next(text, r"[\s\"'&]")
    while name := _NAME.search(text, position):
        # A value may hold the next name, as in `env=API_KEY=x`, or seem to, after a quote that nobody closed: so
        # the search continues inside it, and values that overlap go together.
        position = name.end()
        secrecy = find_secrecy(name["name"])
        if not secrecy:
            continue
        if _HEADER.fullmatch(name["name"]):
            end = _find_header_end(text, name.start("name"), position, line_end.after(position))
        elif quoted := _QUOTED.match(text, position):
            end = quoted.end()
        else:
            opening = _OPENING.match(text, position)
            end = word_end.after(opening.end() if opening else position)
        if end > done and _is_secret(text[position:end].strip("\"'"), secrecy):
            if position >= done:
                quote = text[position] if text[position] in "\"'" and text[end - 1] == text[position] else ""
                parts += [text[done:position], quote, REDACTED, quote]
            done = end
    return "".join((*parts, text[done:]))


class _Next:
    """Where a pattern comes next; it looks at every character once, however often it is asked."""

    def __init__(self, text: str, pattern: str) -> None:
        self.text = text
        self.pattern = re.compile(pattern)
        self.found = -1

    def after(self, position: int) -> int:
        """`position` only grows. The end of the text if there is none."""
        if self.found < position:
            match = self.pattern.search(self.text, position)
            self.found = match.start() if match else len(self.text)
        return self.found


def _find_header_end(text: str, name: int, value: int, line_end: int) -> int:
    """Where the value of a header ends: with its line, or with the quotes around it or around them both."""
    inside = text[value : value + 1] in ("'", '"')
    quote = text[value] if inside else text[name - 1] if name and text[name - 1] in "'\"" else ""
    closing = text.find(quote, value + inside, line_end) if quote else -1
    return line_end if closing < 0 else closing + inside


def _is_secret(text: str, secrecy: Secrecy) -> bool:
    """Whether a text under a secret's name can be the secret."""
    if not secrecy or _SWITCH.fullmatch(text):
        return False
    return secrecy is Secrecy.NUMBERS_TOO or _MODEL_VALUE.fullmatch(text) is None


# -- values


def redact(value: Any, *, extra: Iterable[str] = ()) -> Any:
    """The value without its secrets.

    Mappings, lists, tuples, sets, texts and bytes are copied; anything else is returned as it is, or
    hidden if it lies under a secret's name. `extra` are patterns (`my_*`) of more keys to hide. What contains
    itself, or is too deep or too large, is cut.
    """
    return _Walk(tuple(extra)).clean(value, Secrecy.NOTHING, 0)


def redact_command(argv: Iterable[object], *, extra: Iterable[str] = ()) -> list[str]:
    """The words of a command line without secrets: `--api-key X`, `--token=X`, `KEY=X`, addresses."""
    return _Walk(tuple(extra)).clean_words([str(word) for word in argv])


class _Walk:
    """One walk over one value."""

    def __init__(self, extra: tuple[str, ...]) -> None:
        self.extra = [pattern.lower() for pattern in extra]
        self.values_left = MAX_VALUES
        self.around: set[int] = set()  # ids of the containers we are in

    def secrecy(self, key: object) -> Secrecy:
        if not isinstance(key, str):
            return Secrecy.NOTHING
        if any(fnmatchcase(key.lower(), pattern) for pattern in self.extra):
            return Secrecy.NUMBERS_TOO
        return find_secrecy(key)

    def clean(self, value: Any, secrecy: Secrecy, depth: int) -> Any:
        self.values_left -= 1
        kind = type(value)  # not isinstance: a proxy may raise when asked for its class
        if value is None or kind is bool:
            return value
        if issubclass(kind, (int, float)):
            return REDACTED if secrecy is Secrecy.NUMBERS_TOO else value
        if issubclass(kind, str):
            return REDACTED if _is_secret(value, secrecy) else redact_text(value)
        if issubclass(kind, (bytes, bytearray)):
            text = value.decode("utf-8", "replace")
            return value if self.clean(text, secrecy, depth) == text else REDACTED
        if not issubclass(kind, (Mapping, list, tuple, set, frozenset)):
            return REDACTED if secrecy else value
        if depth >= MAX_DEPTH or self.values_left < 0 or id(value) in self.around:
            return CUT
        self.around.add(id(value))
        try:
            return self.clean_container(value, kind, secrecy, depth + 1)
        except Exception:  # noqa: BLE001 - a user's mapping may raise anything while it is read
            return CUT
        finally:
            self.around.discard(id(value))

    def clean_container(self, value: Any, kind: type, secrecy: Secrecy, depth: int) -> Any:
        if issubclass(kind, Mapping):
            return self.clean_mapping(value, secrecy, depth)
        if issubclass(kind, (set, frozenset)):
            items = [self.clean(item, secrecy, depth) for item in value]
            return frozenset(items) if issubclass(kind, frozenset) else set(items)
        if not secrecy and all(type(item) is str for item in value):
            items = self.clean_words(value)
        else:
            items = [self.clean(item, secrecy, depth) for item in value]
        return items if issubclass(kind, list) else tuple(items)

    def clean_mapping(self, value: Mapping[Any, Any], secrecy: Secrecy, depth: int) -> dict[Any, Any]:
        cleaned: dict[Any, Any] = {}
        # {"name": "API_KEY", "value": "..."}: the key is itself a value.
        named = self.secrecy(value.get("name", value.get("key"))) if "value" in value else Secrecy.NOTHING
        for key, item in value.items():
            inner = max(secrecy, self.secrecy(key), named if key == "value" else Secrecy.NOTHING)
            name = redact_text(key) if isinstance(key, str) else key
            cleaned[free_key(name, cleaned)] = self.clean(item, inner, depth)
        return cleaned

    def clean_words(self, words: Sequence[str]) -> list[str]:
        """Words of a command line, or any list of texts: a pair (`("password", "x")`) is one as well."""
        self.values_left -= len(words)
        cleaned = []
        secrecy = Secrecy.NOTHING  # of the flag before
        for word in words:
            if secrecy and not re.match(r"--|-[A-Za-z]$", word):
                cleaned.append(REDACTED if _is_secret(word, secrecy) else redact_text(word))
                secrecy = Secrecy.NOTHING
                continue
            name, equals, value = word.partition("=")
            secrecy = self.secrecy(name.lstrip("-+~"))
            if equals:
                text = f"{name}={REDACTED}" if _is_secret(value, secrecy) else redact_text(word)
                secrecy = Secrecy.NOTHING
            else:
                text = redact_text(word)
                if not word.startswith("-") and len(words) != 2:
                    secrecy = Secrecy.NOTHING
            cleaned.append(text)
        return cleaned


def free_key(key: Any, taken: Mapping[Any, Any]) -> Any:
    """`key`, or `key (2)` and so on if it is taken: two keys that became one must not hide each other."""
    if key not in taken:
        return key
    # By halves: of ten thousand keys that became one, each would count all before it.
    low, high = 1, 2
    while f"{key} ({high})" in taken:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{key} ({middle})" in taken else (low, middle)
    return f"{key} ({high})"
