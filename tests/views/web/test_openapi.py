"""Somebody else's program reads the description and tries to break what it describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from waiting import PATIENCE

from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.openapi import describe, render_markdown

from .conftest import Server

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


def _schema() -> Any:
    schema = schemathesis.openapi.from_dict(describe(ENDPOINTS, allow_edit=False))
    return schema.exclude(path="/runs/{run}/stream")  # it never ends


OPERATIONS = {found.ok().label: found.ok() for found in _schema().get_all_operations()}


# Not `schema.parametrize`: its tests all have the same name, of which pytest-xdist runs one.
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("label", OPERATIONS)
def test_the_api_keeps_its_description(label: str, mode: GenerationMode, server: Server, keys: list[str]) -> None:
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def ask(case: Any) -> None:
        # Names are not to be guessed: half of the time an existing run is meant, unless the name is the mistake.
        run = case.path_parameters.get("run", "")
        if run and len(run) <= 300 and "\0" not in run and len(run) % 2 == 0:
            case.path_parameters["run"] = keys[0]
        checks = [check for check in CHECKS if check is not negative_data_rejection or not _is_fine_as_text(case)]
        case.call_and_validate(base_url=f"{server.base}api/v1", checks=checks, timeout=PATIENCE)

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # without parameters nothing can be asked wrongly


def _is_fine_as_text(case: Any) -> bool:
    """Whether a parameter that is text has a number, null or the like for a value: in an address that is a text, and
    a fine name, so nothing was asked wrongly."""
    described = describe(ENDPOINTS, allow_edit=False)["paths"][case.operation.path][case.method.lower()]
    of_text = {
        item["name"]
        for item in described.get("parameters", ())
        if "string" in (item["schema"].get("type"), item["schema"].get("items", {}).get("type"))
    }
    return any(
        not isinstance(item, str)
        for name, value in (case.query or {}).items()
        if name in of_text
        for item in (value if isinstance(value, list) else [value])
    )


def test_every_endpoint_is_described_and_the_document_is_served(server: Server) -> None:
    document = httpx.get(f"{server.base}api/v1/openapi.json", timeout=PATIENCE).json()
    assert set(document["paths"]) == {*(endpoint.path for endpoint in ENDPOINTS), "/runs/{run}/stream"}
    assert document["openapi"].startswith("3.1")


def test_the_page_about_the_api_is_up_to_date() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    assert text == render_markdown(ENDPOINTS), "python -m trainvitals.views.web.openapi > docs/api.md"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_number_has_limits_and_every_list_an_end(endpoint: Any) -> None:
    for parameter in endpoint.parameters:
        if parameter.kind in ("integer", "number"):
            assert parameter.low is not None and parameter.high is not None, parameter.name
        assert 0 < parameter.most <= 20_000
