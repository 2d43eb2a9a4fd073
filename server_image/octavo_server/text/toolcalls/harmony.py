"""GPT-OSS: messages in channels: `analysis` is reasoning, a recipient `functions.name` a call, the rest content."""

from __future__ import annotations

import re

from octavo_server.text.toolcalls.parsed import Call, Parsed, without_held

_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser:
    """`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`."""

    start = "<|start|>"
    message = "<|message|>"
    ends = ("<|end|>", "<|return|>", "<|call|>", start)
    markers = (*ends, message, "<|channel|>", "<|constrain|>")

    def parse(self, text: str, *, final: bool) -> Parsed:
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[Call] = []
        position = self._first_header(text)
        if final and self.message not in text:
            return Parsed(content=text[: min(self._headers(text), default=len(text))])
        if position:
            content.append(without_held(text[:position], self.markers, final=final or position < len(text)))
        while position < len(text):
            body = text.find(self.message, position)
            if body < 0:
                break
            header = text[position:body]
            body += len(self.message)
            stops = [place for mark in self.ends if (place := text.find(mark, body)) >= 0]
            end = min(stops, default=len(text))
            piece = text[body:end] if stops else without_held(text[body:], self.ends, final=final)
            recipient = _RECIPIENT.search(header)
            channel = _CHANNEL.search(header)
            if recipient is not None:
                calls.append(Call(recipient.group(1), piece.strip() or ("{}" if stops or final else "")))
            elif channel is not None and channel.group(1) == "analysis":
                reasoning.append(piece)
            else:
                content.append(piece)
            position = end
            while text.startswith(self.ends, position):
                position = text.index(">", position) + 1
        return Parsed("".join(reasoning), "".join(content), tuple(calls))

    def _first_header(self, text: str) -> int:
        """Where the first header begins; a model that writes no channels writes content before that, or all along."""
        if text.lstrip().startswith("to=") or "to=".startswith(text.lstrip()):
            return 0
        return min(self._headers(text), default=len(text))

    def _headers(self, text: str) -> list[int]:
        return [place for mark in ("<|channel|>", self.start, self.message) if (place := text.find(mark)) >= 0]
