"""What is known of a service's model: the latest check's finding, or a replica that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.model_section import claim_path
from octavo_operator.status.conditions import Verdict
from octavo_operator.status.pods import is_ready

from . import server_contract as contract
from .check_job import CheckResult, attempt_of, check_job, live_check, read_check
from .deployments import stored_templates
from .facts import Facts, Manifest
from .fetch_state import claim_trouble, claim_warning, fetching
from .pod_template import spec_inputs
from .rollout import label_of


@dataclass(frozen=True)
class ModelState:
    """The condition ModelReady and what it takes to keep it true to the facts."""

    verdict: Verdict
    proven: bool
    jobs: tuple[Manifest, ...] = ()
    requeue_seconds: float | None = None
    shape: Mapping[str, int] = field(default_factory=dict)
    """What the kernels see of the model; empty = not told."""


def _verdict(facts: Facts, spec: InferenceServiceSpec, result: CheckResult) -> Verdict:
    where = claim_path(spec.model.uri)
    if where is not None and result.proven is None:
        known = {claim["metadata"]["name"] for claim in facts.claims}
        if known and where.claim not in known:
            message = f"model.uri names the claim {where.claim}, which does not exist in this namespace; create it"
            return Verdict("ModelReady", False, "ClaimNotFound", message)
    message = result.message
    if result.proven is False and spec.model.uri not in message:
        message = f"model.uri {spec.model.uri}: {message}"
    if result.proven is False and result.retry_seconds is not None:
        labels = (
            f"{contract.SERVICE_LABEL}={facts.service['metadata']['name']},{contract.ROLE_LABEL}={contract.ROLE_CHECK}"
        )
        message += f"; it is checked again after a while, and at once after: kubectl delete jobs -l {labels}"
    secret = spec.model.secret_ref
    if result.proven is False and secret is not None and secret.name not in message:
        message += f" (model.secretRef {secret.name})"
    return Verdict("ModelReady", result.proven, result.reason, message)


def _is_served(facts: Facts, spec: InferenceServiceSpec) -> bool:
    """Whether a ready replica serves this very model: the best proof there is."""
    wanted = spec_inputs(spec).get("model")
    proofs = {
        label_of(item, contract.TEMPLATE_LABEL)
        for item in stored_templates(facts).values()
        if (item["data"]["inputs"].get("spec") or {}).get("model") == wanted
    }
    return any(is_ready(pod) and label_of(pod, contract.TEMPLATE_LABEL) in proofs for pod in facts.pods)


def check_model(facts: Facts, spec: InferenceServiceSpec, image: str | None) -> ModelState:
    """What is known of the model, and the Job that finds out with `image`; None: nothing can be checked yet."""
    live = live_check(facts, spec)
    attempt = attempt_of(live) if live else 1
    if image is None:
        message = "the model is checked once node type and image are known"
        if not any(item.runtime == Runtime.OCTAVO.value for item in facts.settings.images):
            message = (
                "the catalogue holds no image of runtime Octavo, whose programs check and fetch the models of every "
                "runtime; have an administrator add one to serverImages"
            )
        verdict = Verdict("ModelReady", None, "NotChecked", message)
        return ModelState(verdict, False, (check_job(facts, spec, "", attempt),) if live else ())
    result = read_check(facts, spec)
    if result.retry_seconds == 0:
        # The failed Job is not in this plan, and so pruned; its successor begins in the same plan.
        attempt += 1
    job = check_job(facts, spec, image, attempt)
    verdict = _verdict(facts, spec, result)
    if verdict.state is None:
        told = (facts.service.get("status") or {}).get("conditions") or ()
        before: Manifest = next((item for item in told if item["type"] == "ModelReady"), {})
        if _is_served(facts, spec):
            verdict = Verdict("ModelReady", True, "Serving", "a replica serves this model")
        elif attempt > 1 and before.get("status") == "False":
            # While it is checked again the last finding stands, or status would flap with each attempt.
            verdict = Verdict("ModelReady", False, before["reason"], before["message"])
    proven = verdict.state is True
    if proven and not _is_served(facts, spec):
        trouble = claim_trouble(facts, spec, result.size_bytes)
        proven = trouble is None
        verdict = trouble or fetching(facts, spec) or verdict
    if verdict.state is True:
        verdict = claim_warning(facts, spec) or verdict
    return ModelState(verdict, proven, (job,), result.retry_seconds or None, result.shape)
