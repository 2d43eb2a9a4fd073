"""Our tokenizer against transformers, and every place that a tokenizer can come from."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_server.text.gguf_header import GgufError, parse_header, read_header
from octavo_server.text.gguf_tokenizer import VocabularyError, build_tokenizer
from octavo_server.text.tokenizer import TextTokenizer, TokenizerError, load_tokenizer

TEXTS = [
    "Hello, world! It's 12345.678 o'clock; we'll see.",
    "def f(x):\n\treturn x**2  # a comment\n\n\n    pass\r\n",
    "Ünïcödé naïve façade Straße ΑΒΓ абв עברית العربية हिन्दी ไทย",
    "日本語のテキストと中文文本，한국어도 있습니다。",
    "🦙👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 ﬁ ½ ① ٣ Ⅷ x² \u200b\u00a0\u3000",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|im_start|",
    " leading", "trailing ", "   ", "\n", "a" * 300, "0" * 20,
    "https://example.org/a?b=c&d=%20 {\"json\": [1, 2.5e-3, null]}",
]  # fmt: skip


def test_ids_equal_those_of_transformers_on_varied_texts(tokenizer: Any, reference_tokenizer: Any) -> None:
    for text in TEXTS:
        expected = reference_tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        assert tokenizer.decode(expected, skip_special_tokens=False) == text


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_ids_equal_those_of_transformers_on_any_text(tokenizer: Any, reference_tokenizer: Any, text: str) -> None:
    expected = reference_tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False) == expected


def test_a_folder_with_tokenizer_json_gives_the_same_as_the_gguf_file(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>", "chat_template": "config"})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    folder = load_tokenizer(tmp_path)
    assert folder.eos_ids == {0, 2}
    assert folder.special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    assert folder.chat_template == "config"
    assert [folder.encode(text, add_special_tokens=True) for text in TEXTS] == [
        tokenizer.encode(text, add_special_tokens=True) for text in TEXTS
    ]
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_tokenizer(tmp_path).chat_template == "file"
    (tmp_path / "own.jinja").write_text("own")
    assert load_tokenizer(tmp_path, chat_template_file=tmp_path / "own.jinja").chat_template == "own"


def test_a_sentencepiece_vocabulary_merges_by_score_and_falls_back_to_bytes() -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "▁a", "bc", "ab", "▁ab", "abc"]
    scores = [0.0] * 263 + [-float(position) for position in range(len(pieces) - 263)]
    header = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    tokenizer = TextTokenizer(build_tokenizer(header), frozenset({2}))
    ids = tokenizer.encode("abc é", add_special_tokens=True)
    assert [tokenizer.inner.id_to_token(index) for index in ids] == ["<s>", "▁a", "bc", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "abc é"
    assert tokenizer.strips_first_space


def test_what_can_not_be_tokenised_rightly_is_refused_by_the_key_at_fault(model_path: Path) -> None:
    header = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.pre": "martian"}
    with pytest.raises(VocabularyError, match=r"tokenizer\.ggml\.pre is 'martian'"):
        build_tokenizer(header)
    with pytest.raises(VocabularyError, match=r"tokenizer\.ggml\.tokens"):
        build_tokenizer({"tokenizer.ggml.model": "gpt2"})
    with pytest.raises(VocabularyError, match="'t5'"):
        build_tokenizer({**header, "tokenizer.ggml.model": "t5"})


def test_the_header_equals_what_the_gguf_package_reads(model_path: Path) -> None:
    import gguf

    header = read_header(model_path)
    reader = gguf.GGUFReader(str(model_path))
    names = [name for name in reader.fields if not name.startswith("GGUF.")]
    assert list(header) == names
    for name in names:
        if len(reader.fields[name].data) < 1000:
            assert header[name] == reader.fields[name].contents(), name
    last = len(header["tokenizer.ggml.tokens"]) - 1
    assert header["tokenizer.ggml.tokens"][last] == reader.fields["tokenizer.ggml.tokens"].contents(last)


def test_a_damaged_header_is_named_and_never_read_on_for_ever(model_path: Path) -> None:
    with model_path.open("rb") as file:
        start = file.read(3_000_000)
    for data in (b"", b"GGML" + start[4:], start[:30], start[:100_000], start[:4] + struct.pack("<I", 9) + start[8:]):
        with pytest.raises(GgufError, match="some file"):
            parse_header(BytesIO(data), name="some file")
    huge = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60)
    with pytest.raises(GgufError, match="damaged"):
        parse_header(BytesIO(huge), name="some file")


def test_a_folder_without_or_with_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="can't be used"):
        load_tokenizer(tmp_path)
