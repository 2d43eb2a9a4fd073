"""What pages show of our resources and values exists, field by field; what they name in a sentence does, too."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml
from octavo_operator.api.inference_service import InferenceService
from octavo_operator.api.schema import inference_service_crd, tuning_profile_crd
from octavo_operator.metrics import REGISTRY
from octavo_operator.plan.support import unsupported_fields
from octavo_operator.scaling import autoscaler
from octavo_server.options import CALIBRATE, FETCH, SERVE

from dashboards import alerts
from scripts.metrics_page import families
from tests.frame.pages import DOCS, PAGES, ROOT, Block, blocks, inline_code

GROUP = "serving.octavo.dev/"
assert autoscaler.DESIRED is not None  # importing it registers the metrics of scaling


def root_schema(crd: dict[str, Any]) -> dict[str, Any]:
    [version] = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


SERVICE = root_schema(inference_service_crd())
SERVICE["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
SPEC = SERVICE["properties"]["spec"]
VALUES: dict[str, Any] = json.loads((ROOT / "charts/octavo/values.schema.json").read_text())


def strict(schema: Any, *, partial: bool = False) -> Any:
    """The schema as a validator wants it: a field that it does not know is an error (the API server drops it);
    `partial` = a piece of a manifest, in which required fields may be missing."""
    if isinstance(schema, list):
        return [strict(item, partial=partial) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: strict(value, partial=partial) for key, value in schema.items() if not (partial and key == "required")}
    if "properties" in schema and "additionalProperties" not in schema and isinstance(schema["properties"], Mapping):
        made["additionalProperties"] = False
    return made


def documents(block: Block) -> list[Any]:
    return [item for item in yaml.safe_load_all(block.text) if item is not None]


def fault(value: Any, schema: Any) -> str:
    """The first thing that is wrong, in a line; empty when nothing is."""
    found = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    return f"{found.json_path}: {found.message}" if found else ""


YAML = [block for page in PAGES for block in blocks(page) if block.language in ("yaml", "yml")]
OURS = [
    (block.where, item)
    for block in YAML
    for item in documents(block)
    if isinstance(item, dict) and str(item.get("apiVersion", "")).startswith(GROUP)
]
PIECES = [
    (block.where, item)
    for block in YAML
    for item in documents(block)
    if isinstance(item, dict) and set(item) == {"spec"}
]
CHART = [(block.where, documents(block)[0]) for block in YAML if block.text.startswith("# values of the chart")]
FOREIGN = re.compile(r"^(migration|comparison)")


def test_the_pages_show_manifests_pieces_and_values():
    assert len(OURS) >= 9
    assert len(PIECES) >= 3
    assert len(CHART) >= 3


@pytest.mark.parametrize(("where", "manifest"), OURS, ids=[where for where, _ in OURS])
def test_a_manifest_fits_the_schema_and_is_honoured(where, manifest):
    assert manifest["kind"] == "InferenceService", where
    assert fault(manifest, strict(SERVICE)) == "", where
    spec = InferenceService.parse(manifest).spec
    essential = [item.field for item in unsupported_fields(spec) if item.essential]
    assert essential == [], f"{where} shows what this version refuses"


@pytest.mark.parametrize(("where", "piece"), PIECES, ids=[where for where, _ in PIECES])
def test_a_piece_of_a_manifest_fits_the_schema(where, piece):
    assert fault(piece["spec"], strict(SPEC, partial=True)) == "", where


def over_defaults(values: Any, defaults: Any = None) -> Any:
    """As helm lays what is given over the chart's own values."""
    if defaults is None:
        defaults = yaml.safe_load((ROOT / "charts" / "octavo" / "values.yaml").read_text())
    if not (isinstance(values, dict) and isinstance(defaults, dict)):
        return values
    return defaults | {name: over_defaults(value, defaults.get(name, {})) for name, value in values.items()}


@pytest.mark.parametrize(("where", "values"), CHART, ids=[where for where, _ in CHART])
def test_values_of_the_chart_fit_their_schema(where, values):
    assert fault(over_defaults(values), VALUES) == "", where


def test_a_wrong_field_or_value_would_be_told():
    good = copy.deepcopy(OURS[0][1])
    assert fault(good, strict(SERVICE)) == ""
    for path, value in (
        (("spec", "modell"), 1),
        (("spec", "model", "maxLength"), -1),
        (("spec", "scaling"), {"mode": "Magic"}),
    ):
        bad = copy.deepcopy(good)
        place = bad
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        assert fault(bad, strict(SERVICE)) != ""


def fields(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of all fields; `[]` behind lists is left out."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        if "$ref" in inner:
            inner = VALUES["$defs" if "$defs" in VALUES else "definitions"][inner["$ref"].rsplit("/", 1)[1]]
        yield path
        yield from fields(inner if "properties" in inner else inner.get("items", {}), f"{path}.")


KNOWN = {
    *fields(SPEC),
    *fields(SERVICE),
    *(f"status.{path}" for path in fields(SERVICE["properties"]["status"])),
    *fields(SERVICE["properties"]["status"]),
    *fields(root_schema(tuning_profile_crd())["properties"]["spec"]),
    *fields(VALUES),
}
FIRST = {path.partition(".")[0] for path in KNOWN} - {"metadata"}
FREE = ("resources.", "podMonitor.labels.", "prometheusRule.labels.")
"""Below these, names are the user's."""
LOOKS_LIKE_A_FIELD = re.compile(r"^[a-z][A-Za-z]*(?:\[\])?(?:\.[a-z][A-Za-z]*(?:\[\])?)+$")


def named_fields(page: Any) -> Iterator[str]:
    """Fields that a page's sentences name, without values."""
    foreign = FOREIGN.match(str(page.relative_to(DOCS))) if page.is_relative_to(DOCS) else None
    for text in inline_code(page):
        name = re.split(r"[:=\s]", text)[0]
        if not LOOKS_LIKE_A_FIELD.match(name) or name.partition(".")[0].removesuffix("[]") not in FIRST:
            continue
        if foreign and name.startswith(("spec.", "template.")):
            continue
        yield name.replace("[]", "")


def test_every_field_and_value_that_a_sentence_names_exists():
    named = [(page, name) for page in PAGES for name in named_fields(page)]
    assert len(named) > 300
    missing = {
        f"{page.relative_to(ROOT)}: {name}" for page, name in named if not (name in KNOWN or name.startswith(FREE))
    }
    assert sorted(missing) == []


def metric_names() -> set[str]:
    """Everything that servers and operator export and rules record, histograms with their parts."""
    names = set()
    for family in [*families(), *REGISTRY.collect()]:
        names.add(family.name + "_total" if family.type == "counter" else family.name)
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
    return names | {rule.record for rule in alerts.RECORDINGS}


def test_every_metric_that_a_page_names_exists():
    known = metric_names()
    packages = {path.name for path in ROOT.glob("*/octavo_*") if path.is_dir()} | {"octavo_rules"}
    checked = 0
    for page in PAGES:
        for name in re.findall(r"(?<![\w./])(octavo[_:][a-z0-9_:]+|vllm:[a-z_]+)\b(?![./(])", page.read_text()):
            if name in packages or name.split(".")[0] in packages:
                continue
            if name.startswith("vllm:") and name not in known:
                continue  # a metric of vLLM itself
            checked += 1
            assert name.rstrip("_") in {item.rstrip("_") for item in known}, f"{page.relative_to(ROOT)} names {name}"
    assert checked > 60


def test_every_flag_of_the_server_that_a_sentence_names_alone_exists():
    known = {f"--{option.name}" for option in (*SERVE, *FETCH, *CALIBRATE)}
    page = (DOCS / "reference" / "http-api.md").read_text()
    flags = set(re.findall(r"`(--[a-z-]+)", page))
    assert len(flags) > 8
    assert flags <= known


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    books = {path.stem for path in (DOCS / "runbooks").glob("Octavo*.md")}
    assert books == {alert.name for alert in alerts.ALERTS}
    listed = set(re.findall(r"\]\((Octavo\w+)\.md\)", (DOCS / "runbooks" / "index.md").read_text()))
    assert listed == books
