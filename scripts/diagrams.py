"""docs/images/concept-*.svg: a diagram for each page of docs/concepts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.drawing import Picture

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"


def node_types() -> Picture:
    """Nodes by their labels, the types they make, and the Deployments that stand for types."""
    p = Picture(840, 330, "Nodes with equal labels make a type of node; a type with a fitting image gets a Deployment")
    p.say(110, 26, "nodes, by their labels", anchor="middle")
    p.say(420, 26, "types of node", anchor="middle")
    p.say(720, 26, "objects of one service", anchor="middle")
    p.box(5, 40, 222, 58, "node a\nNVIDIA-L4 · 8.9 · CUDA 12.8")
    p.box(5, 106, 222, 58, "node b\nNVIDIA-L4 · 8.9 · CUDA 13.0")
    p.box(5, 172, 222, 58, "node c\nNVIDIA-H200 · 9.0 · CUDA 13.0")
    p.box(5, 256, 222, 58, "node d\na GPU without labels", "grey")
    p.box(300, 40, 240, 58, "NVIDIA-L4 · 8.9 · whole\nimage cuda12.8, mode Native", "main")
    p.box(300, 106, 240, 58, "NVIDIA-L4 · 8.9 · whole\nimage cuda13.0, mode Native", "main")
    p.box(300, 172, 240, 58, "NVIDIA-H200 · 9.0 · whole\nimage cuda13.0, mode Native", "main")
    p.box(300, 256, 240, 58, "no type\ntold, never guessed", "hot")
    for y in (69, 135, 201, 285):
        p.arrow((227, y), (298, y), dashed=y == 285)
    p.box(620, 72, 200, 58, "Deployment chat-…\naffinity: L4, CUDA ≥ 12.8")
    p.box(620, 172, 200, 58, "Deployment chat-…\naffinity: H200, CUDA ≥ 13.0")
    p.box(620, 256, 200, 58, "NodeTypesResolved\nexplain nodes", "grey")
    p.arrow((540, 69), (580, 69), (580, 92), (618, 92))
    p.arrow((540, 201), (618, 201))
    p.arrow((540, 285), (618, 285), dashed=True)
    p.say(624, 150, "cheapest with room first")
    return p


def block_size() -> Picture:
    """What a request and a shared prefix take of blocks of 16 and of 64 tokens."""
    p = Picture(
        840, 300, "A request of 40 tokens takes three blocks of 16 tokens, or one of 64; what is left over is wasted"
    )
    token, top = 8, 52
    for row, (size, blocks) in enumerate(((16, 3), (64, 1))):
        y = top + row * 62
        p.say(10, y + 20, f"blocks of {size}", bold=True, pale=False)
        p.cell(130, y, 40 * token, 30, "main")
        p.cell(130 + 40 * token, y, (size * blocks - 40) * token, 30, "hot")
        for number in range(blocks):
            p.frame(130 + number * size * token, y, size * token, 30)
    p.say(130, 34, "a request of 40 tokens: used, and allocated without use")
    p.say(656, top + 20, "8 slots of 48 idle")
    p.say(656, top + 82, "24 slots of 64 idle")
    p.say(
        130,
        196,
        "a second request with the same first 40 tokens: what it finds in the prefix cache (whole blocks alone)",
    )
    for row, (size, found) in enumerate(((16, 32), (64, 0))):
        y = 210 + row * 42
        p.say(10, y + 20, f"blocks of {size}", bold=True, pale=False)
        p.cell(130, y, 40 * token, 30, "grey")
        if found:
            p.cell(130, y, found * token, 30, "new")
        p.say(656, y + 20, f"{found} of 40 tokens")
    return p


def tuning() -> Picture:
    """From a service that serves to a block size that was measured."""
    p = Picture(840, 262, "A calibration Job beside the replicas measures block sizes and leaves a TuningProfile")
    p.box(10, 30, 180, 64, "service serves\nblockSize 0: takes 16", "main")
    p.box(240, 30, 170, 64, "room beside it?\nreplicas come first")
    p.box(460, 30, 180, 64, "calibration Job\nsame image, same type", "hot")
    p.box(690, 30, 140, 64, "TuningProfile\nof the namespace", "main")
    p.arrow((190, 62), (238, 62))
    p.arrow((410, 62), (458, 62))
    p.arrow((640, 62), (688, 62))
    p.say(434, 20, "yes", anchor="middle")
    p.say(325, 112, "no: waits", anchor="middle")
    p.say(550, 112, "fails: kept with its reason,\nagain after 10 min, 20, … a day", anchor="middle")
    p.box(240, 176, 170, 64, "next rollout\nadopt: NextRollout")
    p.box(460, 176, 180, 64, "at once\nadopt: Immediately")
    p.box(10, 176, 180, 64, "pods with the\nmeasured block size", "new")
    p.arrow((760, 94), (760, 158), (550, 158), (550, 174))
    p.arrow((760, 94), (760, 158), (325, 158), (325, 174))
    p.arrow((240, 208), (192, 208))
    p.arrow((550, 240), (550, 252), (100, 252), (100, 242))
    p.say(666, 208, "also for other services\nwith the same key")
    return p


def scaling() -> Picture:
    """The loop from the pods' metrics to their number."""
    p = Picture(840, 300, "Metrics of serving pods become demand and capacity, these a count, and the count pods")
    p.box(10, 40, 170, 66, "serving pods\nKV use, queue, arrivals", "main")
    p.box(250, 40, 190, 66, "demand in tokens\nrequests/s × residency")
    p.box(250, 150, 190, 66, "capacity learned\nwhat queues showed")
    p.box(510, 88, 150, 66, "needed\nwith room for chance")
    p.box(700, 88, 130, 66, "count wanted\nmin … max", "hot")
    p.arrow((180, 62), (248, 62))
    p.arrow((180, 84), (214, 84), (214, 183), (248, 183))
    p.say(194, 32, "every 5 s", anchor="middle")
    p.arrow((440, 73), (474, 73), (474, 110), (508, 110))
    p.arrow((440, 183), (474, 183), (474, 134), (508, 134))
    p.arrow((660, 121), (698, 121))
    p.say(585, 78, "every 15 s", anchor="middle")
    p.arrow((765, 154), (765, 262), (28, 262), (28, 108))
    p.say(
        400,
        254,
        "up: at the next decision, starting pods count as supply · down: one at a time, after scaleDownSeconds",
        anchor="middle",
    )
    p.box(48, 150, 150, 66, "metrics missing?\nunknown, never zero", "grey")
    p.say(
        430,
        284,
        "no accelerator: the wish is withdrawn after five minutes, with the reason WaitingForAccelerator",
        anchor="middle",
    )
    return p


def rollout() -> Picture:
    """Old and new replicas over time under the three strategies."""
    p = Picture(
        840,
        330,
        "Surge starts the new replica first; Replace ends the old one first; Auto waits for room, then replaces",
    )
    rows = (
        ("Surge,\nor Auto with room", 40, (0, 420), (180, 640), "both run while the new one loads"),
        ("Replace", 130, (0, 180), (200, 640), "a gap with one replica: loading"),
        ("Auto without room", 220, (0, 340), (360, 640), "waits up to waitSeconds, then as Replace"),
    )
    for name, y, old, new, note in rows:
        p.say(10, y + 26, name, bold=True, pale=False)
        p.cell(190 + old[0], y, old[1] - old[0], 26, "old")
        p.say(198, y + 18, "old replica serves", pale=False)
        ready = new[0] + 200
        p.cell(190 + new[0], y + 32, 200, 26, "hot")
        p.say(198 + new[0], y + 50, "new one loads", pale=False)
        p.cell(190 + ready, y + 32, new[1] - ready, 26, "new")
        p.say(198 + ready, y + 50, "serves", pale=False)
        p.say(190, y + 76, note)
    p.arrow((190, 316), (830, 316))
    p.say(822, 308, "time", anchor="end")
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "node-types": node_types,
    "block-size": block_size,
    "tuning": tuning,
    "scaling": scaling,
    "rollout": rollout,
}


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    return {FOLDER / f"concept-{name}.svg": draw().svg() for name, draw in PICTURES.items()}
