"""llama.cpp's side of serving_cpu: a worker that runs in an environment of its own (it needs only llama-cpp-python).

Reads one JSON object per line: {"streams": N, "prompts": [[ids…]…], "new_tokens": n}; decodes all streams greedily in
one batch per step, as llama.cpp's parallel mode does, and answers {"prefill_seconds", "decode_seconds", "tokens"}.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


class Peer:
    """A model and a context for up to `streams` sequences."""

    def __init__(self, path: str, threads: int, streams: int, *, repack: bool) -> None:
        llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_parameters = llama_cpp.llama_model_default_params()
        model_parameters.use_extra_bufts = repack
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_parameters)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = 16384
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_seq_max = streams
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, object]:
        """Prefills each prompt, then decodes `new_tokens - 1` further tokens of all of them."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        started = time.perf_counter()
        answers = []
        for stream, prompt in enumerate(prompts):
            for at in range(0, len(prompt), 512):
                part = prompt[at : at + 512]
                self._decode([(token, at + i, stream) for i, token in enumerate(part)], last_only=True)
            answers.append([self._greedy(-1)])
        prefilled = time.perf_counter()
        for step in range(new_tokens - 1):
            entries = [(answer[-1], len(prompts[s]) + step, s) for s, answer in enumerate(answers)]
            self._decode(entries, last_only=False)
            for stream, answer in enumerate(answers):
                answer.append(self._greedy(stream))
        ended = time.perf_counter()
        return {"prefill_seconds": prefilled - started, "decode_seconds": ended - prefilled, "tokens": answers}

    def _decode(self, entries: list[tuple[int, int, int]], *, last_only: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, stream) in enumerate(entries):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = not last_only or index + 1 == len(entries)
        code = llama_cpp.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def _greedy(self, index: int) -> int:
        row = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(row, shape=(self._vocabulary,)).argmax())


@llama_cpp.llama_log_callback
def _SILENT(level: int, text: bytes, data: object) -> None:
    return None


def main() -> None:
    path, threads, streams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    peer = Peer(path, threads, streams, repack=sys.argv[4] == "repack")
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps(peer.run(task["prompts"], task["new_tokens"])), flush=True)


if __name__ == "__main__":
    main()
