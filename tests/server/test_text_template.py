"""Chat templates: the same text as transformers, in a sandbox, with errors that can be told to the client."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_server.text.template import ChatTemplate, TemplateError

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Hi <b>"you"</b> 🦙'},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "And?"},
]


def test_the_models_template_renders_what_transformers_renders(tokenizer: Any, reference_tokenizer: Any) -> None:
    reference = reference_tokenizer
    template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
    for messages in (CONVERSATION, CONVERSATION[1:2]):
        for prompt in (True, False):
            expected = reference.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt, chat_template=tokenizer.chat_template
            )
            assert template.render(messages, add_generation_prompt=prompt) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set x = messages.__init__.__globals__ %}{{ x }}",
        "{{ messages[7].content + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_that_reaches_out_changes_its_input_or_fails_raises_one_error(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render(CONVERSATION)


def test_a_template_with_a_syntax_error_is_refused_when_loaded() -> None:
    with pytest.raises(TemplateError, match="has an error"):
        ChatTemplate("{% for %}", {})


def test_json_is_written_as_json_and_generation_blocks_keep_their_content() -> None:
    source = "{% generation %}{{ messages[1].content | tojson }}{% endgeneration %}{% break %}"
    with pytest.raises(TemplateError):
        ChatTemplate(source, {})
    template = ChatTemplate(source.removesuffix("{% break %}"), {})
    assert template.render(CONVERSATION) == '"Hi <b>\\"you\\"</b> 🦙"'


def test_special_tokens_and_extra_variables_reach_the_template_and_messages_win() -> None:
    template = ChatTemplate("{{ bos_token }}{{ thinking }}{{ messages | length }}", {"bos_token": "<s>"})
    assert template.render(CONVERSATION, variables={"thinking": "on", "messages": []}) == "<s>on4"
