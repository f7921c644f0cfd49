"""Any exporter's metrics page, scraped into the run: DCGM exporter, node exporter, vLLM, a custom one.

Each page is a unit. Its series keep their names and labels, in a table called `openmetrics`. The pages of Ray's nodes
are found without an address, and shortened (`ray_pages`).
"""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from typing import IO, Any

from trainvitals.sources import Notice, Sample, SourceUnavailable, Unit, Value, World, ray_pages
from trainvitals.sources.exposition import PageParser, ScrapedPage, group_series

TIMEOUT = 5.0
"""Seconds for one scrape, from connecting to the last byte."""
LARGEST_PAGE = 16 << 20
"""Bytes, also after unpacking."""
MOST_SERIES = 20_000
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
RESERVED = frozenset(("target", "timestamp", "host"))
"""Names that are the journal's own."""


def create(world: World) -> OpenMetricsSource:
    return OpenMetricsSource(world)


class OpenMetricsSource:
    """One unit per address in the settings."""

    name = "openmetrics"

    def __init__(self, world: World) -> None:
        self._urls = world.openmetrics_urls

    def discover(self) -> Sequence[Unit]:
        if not self._urls:
            raise SourceUnavailable("no metrics page configured (setting openmetrics)")
        units: list[Unit] = []
        for url in dict.fromkeys(self._urls):
            if url.startswith(ray_pages.SCHEME):
                units += [RayUnit(url, *page) for page in ray_pages.list_pages(url)]
            else:
                units.append(TargetUnit(url))
        if not units:
            raise SourceUnavailable("no Ray node on this machine serves metrics; ray[default] does")
        return units

    def describe(self) -> Mapping[str, object]:
        return {"targets": [target_name(url) for url in self._urls]} if self._urls else {}


def target_name(url: str) -> str:
    """The address without what may be secret: user, password, query."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


class TargetUnit:
    """One page. A scrape that fails raises SourceUnavailable with the reason; the next one starts afresh."""

    def __init__(self, url: str, most_series: int = MOST_SERIES, timeout: float = TIMEOUT) -> None:
        self.key = f"openmetrics:{target_name(url)}"
        self._url = url
        self._target = target_name(url)
        self._labels: dict[str, Value] = {"target": self._target}
        self._timeout = timeout
        self._most = most_series
        self._parser = PageParser(most_series)
        self._noticed: set[str] = set()

    def read(self) -> Sequence[Sample | Notice]:
        began = time.time()
        text, openmetrics = self._fetch()
        if openmetrics and not text.endswith(("# EOF", "# EOF\n")):
            raise SourceUnavailable(f"{self._target} returned a truncated page")
        return self._describe(self._parser.parse(text, openmetrics), began)

    def _describe(self, page: ScrapedPage, began: float) -> list[Sample | Notice]:
        if page.malformed and not page.series:
            raise SourceUnavailable(f"{self._target} is not a metrics page: no valid line")
        scrape: dict[str, Value] = {
            "scrape_series": len(page.series),
            "scrape_series_beyond": page.beyond,
            "scrape_lines_malformed": page.malformed,
        }
        samples: list[Sample | Notice] = [Sample("openmetrics", self._labels, scrape, began)]
        for (labels, moment), values in group_series(page, RESERVED).items():
            found = {**self._labels, **dict(labels)}
            samples.append(Sample("openmetrics", found, values, moment if moment is not None else began))
        if page.beyond:
            samples += self._notice_once(
                "scrape_too_large",
                f"has more than {self._most} series; ignoring {page.beyond}",
            )
        if page.malformed:
            samples += self._notice_once("scrape_malformed", f"has {page.malformed} malformed lines; ignoring them")
        return samples

    def close(self) -> None:
        """Nothing is kept open."""

    def _notice_once(self, event: str, what: str) -> list[Notice]:
        if event in self._noticed:
            return []
        self._noticed.add(event)
        return [Notice(event, f"{self._target} {what}", "warning", {"target": self._target})]

    def _fetch(self) -> tuple[str, bool]:
        """(the page, whether it is OpenMetrics)."""
        try:
            raw, kind = fetch_page(self._url, self._timeout)
        except urllib.error.HTTPError as error:
            error.close()
            raise SourceUnavailable(f"{self._target} returned {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise SourceUnavailable(f"{self._target} is unreachable: {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
            raise SourceUnavailable(f"cannot read {self._target}: {error or type(error).__name__}") from error
        return raw.decode("utf-8", "replace"), kind.startswith("application/openmetrics-text")


class RayUnit(TargetUnit):
    """The page of one node of Ray."""

    def __init__(self, address: str, node_id: str, url: str) -> None:
        super().__init__(url)
        self.key = f"openmetrics:{ray_pages.SCHEME}{node_id}"
        self._target = target_name(address)
        self._labels = {"target": self._target, "node_id": node_id}
        self._next = 0.0

    def read(self) -> Sequence[Sample | Notice]:
        """Nothing until the page may have changed."""
        if time.monotonic() < self._next:
            return ()
        self._next = time.monotonic() + ray_pages.SECONDS
        return super().read()

    def _fetch(self) -> tuple[str, bool]:
        text, _ = super()._fetch()
        return ray_pages.keep_lines(text), False

    def _describe(self, page: ScrapedPage, began: float) -> list[Sample | Notice]:
        series = [item._replace(labels=ray_pages.keep_labels(item.labels)) for item in page.series]
        return super()._describe(page._replace(series=series), began)


def fetch_page(url: str, timeout: float) -> tuple[bytes, str]:
    """(body unpacked, content type) of a page, within a time and a size. Raises ValueError past either.

    Straight to the address: no proxy of the environment, no redirect (it would carry the password along).
    """
    deadline = time.monotonic() + timeout
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"not an http address: {parts.scheme or 'no scheme'}")
    headers = {"Accept": ACCEPT, "Accept-Encoding": "gzip", "User-Agent": "trainvitals"}
    user, at, host = parts.netloc.rpartition("@")
    if at:
        secret = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        headers["Authorization"] = f"Basic {secret}"
    request = urllib.request.Request(
        urllib.parse.urlunsplit((parts.scheme, host, parts.path or "/metrics", parts.query, "")),
        headers=headers,
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    with opener.open(request, timeout=timeout) as response:
        packed = response.headers.get("Content-Encoding", "").lower() == "gzip"
        announced = response.headers.get("Content-Length")
        body, received = bytearray(), 0
        unpack = zlib.decompressobj(wbits=31) if packed else None
        while piece := response.read1(1 << 16):
            received += len(piece)
            body += unpack.decompress(piece, LARGEST_PAGE + 1 - len(body)) if unpack else piece
            if len(body) > LARGEST_PAGE:
                raise ValueError(f"the page is larger than {LARGEST_PAGE >> 20} MB")
            if time.monotonic() > deadline:
                raise ValueError(f"no response within {timeout:g} s")
        if (unpack and not unpack.eof) or (announced is not None and received != int(announced)):
            raise ValueError("truncated page")
        return bytes(body), response.headers.get("Content-Type", "")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """None: the redirect itself is the answer, and an error."""
