"""Fills a step's arrays from its plan: which tokens, where they go, which logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo_server.engine.plan import Part, StepPlan
from octavo_server.engine.staging import MAX_GROUPS, Arrays

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Wanted:
    """Rows of logits that a step needs.

    rows: int64, the tokens of the step whose logits are wanted. places: int64, which of those rows are sampled from,
    one per sampling row of the plan. prompts: (row of the plan, first place, places) for prompt log-probabilities.
    """

    rows: Ints
    places: Ints
    prompts: list[tuple[int, int, int]]


def logit_positions(part: Part) -> range:
    """Positions of the part whose logits are needed: the last one, or all that have a next prompt token."""
    request, end = part.request, part.start + part.count
    if request.sampling.prompt_logprobs >= 0 and part.start + 1 < request.prompt_length:
        return range(part.start, end)
    return range(end - 1, end) if part.samples else range(0)


def wants_prompt_logprobs(plan: StepPlan) -> bool:
    """Whether a row needs the logits of more than its last token."""
    return bool(plan.table.special[plan.slots].any()) and any(
        len(logit_positions(part)) > 1 or (len(logit_positions(part)) == 1 and not part.samples) for part in plan
    )


def wanted_rows(plan: StepPlan) -> Wanted:
    """The logits that a plan needs."""
    ends = np.cumsum(plan.counts)
    if not wants_prompt_logprobs(plan):
        rows = ends[plan.samples] - 1
        return Wanted(rows, np.arange(len(rows)), [])
    rows_of: list[int] = []
    places: list[int] = []
    prompts: list[tuple[int, int, int]] = []
    for index, part in enumerate(plan):
        positions = logit_positions(part)
        first = int(ends[index]) - part.count - part.start
        if len(positions) > 1 or (positions and not part.samples):
            prompts.append((index, len(rows_of), len(positions)))
        rows_of += range(first + positions.start, first + positions.stop) if positions else ()
        if part.samples:
            places.append(len(rows_of) - 1)
    return Wanted(np.array(rows_of, np.int64), np.array(places, np.int64), prompts)


def fill(
    arrays: Arrays, plan: StepPlan, wanted: Wanted, *, block_size: int, tokens: int, sequences: int, first_source: int
) -> None:
    """Writes a plan into the buffers, padded to `tokens` tokens and `sequences` sequences.

    What the last step that was written there has in common with this one stays. Padding tokens have slot −1, so
    nothing is written for them, and padding sequences have no token. first_source: where the step's own tokens begin
    in the token table.
    """
    table, single, total, rows = plan.table, plan.singles, plan.tokens, len(plan)
    slots, starts = plan.slots[:single], plan.starts[:single]
    arrays.positions[:single] = starts
    arrays.slot_mapping[:single] = table.tail[slots] * block_size + starts % block_size
    arrays.lengths[:rows] = plan.starts + plan.counts
    drawn = table.drawn[slots]
    if arrays.holds(plan.same if drawn.all() else None, tokens, sequences):
        return
    arrays.sources[:single] = slots
    for row in np.flatnonzero(~drawn).tolist():
        arrays.sources[row] = first_source + row
        arrays.tokens[row] = plan.requests[row].tokens[starts[row]]
    at = single
    for row in range(single, rows):
        request, start, count = plan.requests[row], int(plan.starts[row]), int(plan.counts[row])
        here = slice(at, at + count)
        arrays.tokens[here] = request.tokens[start : start + count]
        arrays.sources[here] = np.arange(first_source + at, first_source + at + count)
        span = np.arange(start, start + count)
        arrays.positions[here] = span
        first = start // block_size
        blocks = np.array(request.blocks[first : -(-(start + count) // block_size)], np.int64)
        arrays.slot_mapping[here] = blocks[span // block_size - first] * block_size + span % block_size
        at += count
    arrays.sources[total:tokens] = 0
    arrays.positions[total:tokens] = 0
    arrays.slot_mapping[total:tokens] = -1
    arrays.starts[0] = 0
    np.cumsum(plan.counts, out=arrays.starts[1 : rows + 1])
    arrays.starts[rows + 1 : sequences + 1] = total
    arrays.lengths[rows:sequences] = 0
    arrays.slots[:rows] = plan.slots
    arrays.slots[rows:sequences] = 0
    count = len(wanted.rows)
    sampling = plan.slots[plan.samples]
    if count <= len(arrays.logit_rows):
        arrays.logit_rows[:count] = wanted.rows
        arrays.logit_rows[count:sequences] = 0
    arrays.sample_slots[: len(sampling)] = sampling
    # What padding samples goes to the entry behind all slots' last tokens.
    arrays.sample_slots[len(sampling) : sequences] = first_source - 1
    if plan.groups is not None:
        groups = len(plan.groups.lengths)
        arrays.group_starts[: groups + 1] = plan.groups.starts
        arrays.group_starts[groups + 1 :] = plan.groups.starts[-1]
        arrays.group_lengths[:groups] = plan.groups.lengths
        arrays.group_lengths[groups:] = 0
    else:
        arrays.group_starts[:] = 0
        arrays.group_lengths[:MAX_GROUPS] = 0
