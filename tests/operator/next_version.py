"""The operator as a later version might be: it renders pods in another way and spells the keys of node types anew."""

from __future__ import annotations

import sys
from typing import Any

from octavo_operator.__main__ import main
from octavo_operator.plan import deployments, node_types
from octavo_operator.plan.pod_template import Replica, render

MARK = "OCTAVO_NEXT_VERSION"
_named = node_types.TypeKey.named


def _render(replica: Replica) -> dict[str, Any]:
    template = render(replica)
    template["spec"]["containers"][0]["env"].append({"name": MARK, "value": "yes"})
    template["metadata"]["annotations"] = {"example.com/version": "next"}
    return template


def _named_anew(key: node_types.TypeKey) -> dict[str, str]:
    return {**_named(key), "spelling": "new"}


if __name__ == "__main__":
    deployments.render = _render
    node_types.TypeKey.named = _named_anew  # type: ignore[method-assign]
    sys.exit(main())
