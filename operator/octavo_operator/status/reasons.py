"""Every reason that a condition can carry, what it means and what to do: the how-to is generated from this list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """One word for programs, explained for people."""

    name: str
    conditions: tuple[str, ...]
    """Conditions that carry it, the one that settles it first."""
    is_fault: bool
    """Whether somebody should do something."""
    meaning: str
    remedy: str = ""


_FLEET = ("Ready", "Progressing")


def _fine(name: str, *conditions: str, meaning: str) -> Reason:
    return Reason(name, conditions, False, meaning)


def _fault(name: str, *conditions: str, meaning: str, remedy: str) -> Reason:
    return Reason(name, conditions, True, meaning, remedy)


SPEC = (
    _fine("Honoured", "SpecHonoured", meaning="Every field of the spec has effect."),
    _fault(
        "InvalidSpec",
        "SpecHonoured",
        "Ready",
        meaning="The object does not match the operator's schema: the CRDs in the cluster are of another version.",
        remedy="Correct the field that the message names, or upgrade the CRDs together with the operator.",
    ),
    _fault(
        "UnsupportedFields",
        "SpecHonoured",
        *_FLEET,
        meaning="A field asks for something that this version can't do, and without it the service would be another.",
        remedy="Change the fields that the message lists. What ran before runs on.",
    ),
    _fault(
        "FieldsWithoutEffect",
        "SpecHonoured",
        meaning="Fields are set that have no effect in this version; the service runs without them.",
        remedy="Nothing, or remove them.",
    ),
    _fault(
        "NotAllowed",
        "SpecHonoured",
        *_FLEET,
        meaning="The image, an extra argument, the mirror that a token would go to, the priority class, a toleration "
        "or a resource is outside of what the administrator allows. No replica is started from this spec; what ran "
        "before runs on.",
        remedy="Use an allowed one, or ask the administrator for the entry of the chart's `policy` that the message "
        "names.",
    ),
)
NODES = (
    _fine("Resolved", "NodeTypesResolved", "ImageResolved", meaning="Nodes fit, and an image fits them."),
    _fault(
        "NoNodeFits",
        "NodeTypesResolved",
        "ImageResolved",
        *_FLEET,
        meaning="No node matches placement: accelerators, nodeSelector, taints, cpu.",
        remedy="Compare the message with `octavo-operator explain nodes`; change placement, or add or label a node.",
    ),
    _fault(
        "NoImage",
        "NodeTypesResolved",
        meaning="Nodes fit, but no image of the catalogue runs on them; ImageResolved says why.",
        remedy="Follow ImageResolved.",
    ),
    _fault(
        "NoNodeListed",
        "NodeTypesResolved",
        *_FLEET,
        meaning="The operator has not seen any node yet.",
        remedy="Wait some seconds after the operator's start; else look whether it may list Nodes.",
    ),
    _fault(
        "NodesNotReadable",
        "NodeTypesResolved",
        "ImageResolved",
        *_FLEET,
        meaning="The operator may not read Nodes (nodes.access false), and the spec leaves product or image open.",
        remedy="Name the products and pin the image with its cudaVersion, or give the operator access to Nodes.",
    ),
    _fault(
        "TypeHeld",
        "NodeTypesResolved",
        meaning="Nodes that replicas run on are gone, or their labels no longer say what they were; what runs is kept.",
        remedy="Bring the nodes or labels back, or change placement so that replicas go elsewhere.",
    ),
    _fine("Held", "ImageResolved", meaning="Replicas keep the image that was chosen while their nodes could be seen."),
    _fault(
        "KernelFallback",
        "ImageResolved",
        meaning="The service runs, but the fast kernels are not promised: driver or image is below CUDA 12.6, or code "
        "must be compiled first.",
        remedy="Make the upgrade that the message names.",
    ),
    _fault(
        "DriverTooOld",
        "ImageResolved",
        *_FLEET,
        meaning="The nodes' driver runs no image of the catalogue.",
        remedy="Upgrade the driver as the message says, or add an image with an older CUDA version.",
    ),
    _fault(
        "ArchitectureNotBuilt",
        "ImageResolved",
        *_FLEET,
        meaning="No image has code for the accelerator's compute capability.",
        remedy="Add an image that is built for it, or choose other accelerators.",
    ),
    _fault(
        "VendorNotBuilt",
        "ImageResolved",
        *_FLEET,
        meaning="No image of the catalogue is built for this vendor's accelerators.",
        remedy="Pin an image of your own that is, or choose other accelerators.",
    ),
    _fault(
        "NoRuntimeImage",
        "ImageResolved",
        *_FLEET,
        meaning="The catalogue holds no image for the runtime that engine.runtime names.",
        remedy="Pin an image, or have an administrator add one to serverImages with its runtime.",
    ),
    _fault(
        "NoCPUImage",
        "ImageResolved",
        *_FLEET,
        meaning="The catalogue holds no image for CPUs.",
        remedy="Add one to serverImages, or pin an image.",
    ),
)
MODEL = (
    _fine("ModelFound", "ModelReady", meaning="The check found the model, could read it and knows its shape."),
    _fine("Serving", "ModelReady", "Available", meaning="A replica serves the model: requests are answered."),
    _fine("NotChecked", "ModelReady", meaning="The model is checked once node type and image are known."),
    _fine("Fetching", "ModelReady", *_FLEET, meaning="Pods fetch the model; the message says how far they are."),
    _fault(
        "ClaimOnOneNode",
        "ModelReady",
        meaning="The claim for fetched files can be used on one node at a time, and the service may have replicas on "
        "several.",
        remedy="Use a ReadWriteMany claim for model.cacheClaim, or none; or keep to one replica.",
    ),
    _fine("CheckPending", "ModelReady", *_FLEET, meaning="The check Job is running."),
    _fault(
        "CheckUnschedulable",
        "ModelReady",
        *_FLEET,
        meaning="The check pod, which needs no accelerator, finds no node.",
        remedy="The message is the scheduler's: free CPU and memory, or mend placement or the claim's volume.",
    ),
    _fault(
        "CheckFailed",
        "ModelReady",
        *_FLEET,
        meaning="The check ended without a result of its own.",
        remedy="Look at its log: kubectl logs -l serving.octavo.dev/role=check,serving.octavo.dev/service=NAME.",
    ),
    _fault(
        "ClaimNotFound",
        "ModelReady",
        *_FLEET,
        meaning="model.uri or model.cacheClaim names a PersistentVolumeClaim that does not exist in the namespace.",
        remedy="Create the claim, or correct the field.",
    ),
    _fault(
        "ModelNotFound",
        "ModelReady",
        *_FLEET,
        meaning="There is nothing at model.uri.",
        remedy="Correct model.uri or model.revision, or put the files there.",
    ),
    _fault(
        "ModelUnreadable",
        "ModelReady",
        *_FLEET,
        meaning="The files are there and can't be read as a model.",
        remedy="The message names the file; bring it again.",
    ),
    _fault(
        "ArchitectureUnsupported",
        "ModelReady",
        *_FLEET,
        meaning="The model's architecture is none that this version serves.",
        remedy="Choose another model, or another runtime once it is supported.",
    ),
    _fault(
        "FormatUnsupported",
        "ModelReady",
        *_FLEET,
        meaning="The weights are stored in a way that this version can't read.",
        remedy="Bring safetensors or GGUF files.",
    ),
    _fault(
        "AccessDenied",
        "ModelReady",
        *_FLEET,
        meaning="The source refuses: the token is missing, wrong, or lacks the right to this model.",
        remedy="Set model.secretRef to a Secret with key `token` (s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), "
        "accept the model's terms, or correct the token.",
    ),
    _fault(
        "SourceUnreachable",
        "ModelReady",
        *_FLEET,
        meaning="The source of the model does not answer.",
        remedy="Open the way out (proxy, networkPolicy.egress), or bring the model onto a claim.",
    ),
    _fault(
        "MaxLengthTooLong",
        "ModelReady",
        *_FLEET,
        meaning="model.maxLength is more than the model allows.",
        remedy="Lower it to what the message says; 0 takes what the model allows.",
    ),
    _fault(
        "NoSpaceLeft",
        "ModelReady",
        *_FLEET,
        meaning="The files do not fit where they would be stored.",
        remedy="Make room, or use a larger volume.",
    ),
    _fault(
        "SchemeUnsupported",
        "ModelReady",
        *_FLEET,
        meaning="This version can't read from this kind of source.",
        remedy="Use pvc://, hf://, s3:// or file://.",
    ),
)
FLEET = (
    _fine("Ready", "Ready", meaning="Every wanted replica is of the present template and serves."),
    _fine("ScaledToZero", "Ready", meaning="No replica is wanted."),
    _fine("Complete", "Progressing", meaning="The last rollout has ended."),
    _fine("Starting", *_FLEET, meaning="Replicas are loading the model."),
    _fine("RollingOut", *_FLEET, meaning="Older replicas are being replaced."),
    _fault(
        "Replacing",
        *_FLEET,
        meaning="The only replica has ended to make room for its successor; nothing serves until that is ready.",
        remedy="Wait; to have no gap next time, keep an accelerator free or run two replicas.",
    ),
    _fault(
        "WaitingForAccelerator",
        *_FLEET,
        "ScalingActive",
        meaning="A replica finds no free accelerator of the kind that the message names.",
        remedy="Free or add one, or allow others in placement. A rollout of strategy Auto gives way after waitSeconds.",
    ),
    _fault(
        "Unschedulable",
        *_FLEET,
        meaning="A replica finds no node for another reason; the message is the scheduler's.",
        remedy="Free CPU or memory, mend the volume, or change placement.",
    ),
    _fault(
        "PodRefused",
        *_FLEET,
        meaning="The API server refuses a replica's pods: a missing priority class, a quota, an admission rule.",
        remedy="Create or correct what the message names; the next try comes by itself.",
    ),
    _fault(
        "NoReplica",
        "Available",
        meaning="No replica serves.",
        remedy="See Ready.",
    ),
    _fault(
        "ContainerEnded",
        *_FLEET,
        meaning="A container ended without telling why.",
        remedy="Look at its log: kubectl logs POD --previous.",
    ),
    _fault(
        "CrashLoopBackOff",
        *_FLEET,
        meaning="A container ends again and again without telling why.",
        remedy="Look at its log: kubectl logs POD --previous.",
    ),
    _fault(
        "ImagePullBackOff",
        *_FLEET,
        "ModelReady",
        meaning="The image can't be pulled.",
        remedy="Correct the image's name or the node's credentials; the message is the kubelet's.",
    ),
    _fault(
        "ErrImagePull",
        *_FLEET,
        "ModelReady",
        meaning="The image can't be pulled.",
        remedy="As for ImagePullBackOff.",
    ),
    _fault(
        "InvalidImageName",
        *_FLEET,
        "ModelReady",
        meaning="The image's name can't be parsed.",
        remedy="Correct image.reference or the catalogue.",
    ),
    _fault(
        "CreateContainerConfigError",
        *_FLEET,
        "ModelReady",
        meaning="Something that the container needs is missing, most often a Secret or one of its keys.",
        remedy="Create what the message names; the container then starts by itself.",
    ),
    _fault(
        "CreateContainerError",
        *_FLEET,
        "ModelReady",
        meaning="The node can't make the container.",
        remedy="The message is the kubelet's.",
    ),
)
OPERATOR = (
    _fault(
        "NameTaken",
        *_FLEET,
        meaning="An object that the service needs has a name that another object in the namespace has already.",
        remedy="Rename the InferenceService, or remove the other object; it is never taken over.",
    ),
    _fault(
        "InternalError",
        *("Progressing", "Ready"),
        meaning="The operator failed on this service, and tries again with growing waits. Others are not affected.",
        remedy="Report it with the message and the operator's log.",
    ),
)
SCALING = (
    _fine("Fixed", "ScalingActive", meaning="spec.replicas decides."),
    _fine("External", "ScalingActive", meaning="An HPA, KEDA or kubectl scale decides through spec.replicas."),
    _fine("ScaledByLoad", "ScalingActive", meaning="The operator sets the count; status.scaling.changes says why."),
    _fault(
        "MetricsMissing",
        "ScalingActive",
        meaning="Metrics of some replicas can't be read; the count is held, since their load is unknown.",
        remedy="Look at the pods without metrics: their /metrics, and network policies between them and the operator.",
    ),
    _fine("NotScaledByLoad", "ScalingActive", meaning="The service runs at minReplicas until its load is known."),
    _fine("NoWakeSource", "ScalingActive", meaning="minReplicas 0 acts as 1: nothing could wake the service."),
    _fine("Explicit", "Tuned", meaning="engine.kvCache.blockSize is set."),
    _fine("DefaultBlockSize", "Tuned", meaning="The default block size is used; nothing was measured."),
    _fine("Measured", "Tuned", meaning="The block size was measured on this type of node; the message says how."),
    _fine("Calibrating", "Tuned", meaning="The block size is being measured, or waits for a free accelerator."),
    _fault(
        "BlocksLargerThanPrefixes",
        "Tuned",
        meaning="engine.kvCache.blockSize is so large that short shared prefixes give no hits of the prefix cache.",
        remedy="Use a smaller blockSize, or 0 to have it chosen; nothing, where prompts share long prefixes.",
    ),
    _fine("OtherRuntime", "Tuned", meaning="Another runtime serves and chooses its block size itself."),
    _fine("UpdateAvailable", "Tuned", meaning="A newer image is taken up at the next rollout (rollout.adopt)."),
)
SECTIONS = (
    ("The spec", SPEC),
    ("Nodes and images", NODES),
    ("The model", MODEL),
    ("The replicas", FLEET),
    ("The operator and the API server", OPERATOR),
    ("Scaling and tuning", SCALING),
)
REASONS: dict[str, Reason] = {reason.name: reason for _, reasons in SECTIONS for reason in reasons}

_HEAD = """\
# Why is it not Ready?

<!-- Generated from octavo_operator/status/reasons.py by `make generate`; do not edit. -->

1. `kubectl get ois` shows the reason in a word, `kubectl describe ois NAME` the sentence to it and what happened when.
   Nothing else is needed: no log of the operator.
2. Look the word up below. The condition in which it stands first is the one that settles it; `Ready` repeats it.
3. What the operator would do now, object by object, tells `octavo-operator explain NAME -n NAMESPACE`; what it sees of
   the nodes, which image it would choose there and which upgrade would help, tells `octavo-operator explain nodes`.
   Both only read, with your kubeconfig.

A word that is not below comes from the server itself (its last words, as `PortInUse` or `MemoryTooSmall`) or from the
API server that refused an object (as `Forbidden` or `Invalid`); its message names the cause and the way out.

`Available` says whether anything serves, whatever else is wrong: alerts use it. `Ready` is true when all wanted
replicas serve the present spec.
"""


def _row(reason: Reason) -> str:
    return f"| `{reason.name}` | {', '.join(reason.conditions)} | {reason.meaning} | {reason.remedy or '–'} |"


def _table(reasons: Iterable[Reason]) -> str:
    return "\n".join(["| reason | conditions | meaning | what to do |", "|---|---|---|---|", *map(_row, reasons)])


def render() -> str:
    """The how-to as Markdown."""
    return _HEAD + "".join(f"\n## {title}\n\n{_table(reasons)}\n" for title, reasons in SECTIONS)
