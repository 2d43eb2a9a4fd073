"""The table of `octavo top`: sums over pods, and a dash for what is not known."""

from __future__ import annotations

import pytest
from octavo_cli.__main__ import main, parser
from octavo_cli.bench import Stream, prompt, quantile
from octavo_cli.bench import table as bench_table
from octavo_cli.context import current_namespace
from octavo_cli.load import Load, rate, table
from rich.console import Console
from rich.table import Table

OWN = """\
octavo_kv_cache_blocks{state="active"} 25
octavo_kv_cache_blocks{state="cached"} 50
octavo_kv_cache_blocks{state="free"} 25
octavo_kv_cache_block_size_tokens 16
octavo_kv_cache_capacity_tokens 1600
octavo_requests_running 3
octavo_requests_waiting 2
octavo_generation_tokens_total %d
"""
VLLM = """\
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:cache_config_info{engine="0",num_gpu_blocks="100",block_size="16"} 1
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:generation_tokens_total{engine="0"} 10
"""


def service(name: str, state: str = "True", reason: str = "Ready") -> dict[str, object]:
    conditions = [{"type": "Ready", "status": state, "reason": reason}]
    status = {"conditions": conditions, "readyReplicas": 2, "replicas": 2, "scaling": {"desired": 3}}
    return {"metadata": {"namespace": "team", "name": name}, "spec": {}, "status": status}


def text_of(made: Table) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as caught:
        console.print(made)
    return caught.get()


def load(at: float, generated: int, pods: int = 2) -> Load:
    made = Load(at)
    for _ in range(pods):
        made.add(OWN % generated, "Octavo")
    return made


def test_figures_of_pods_are_summed_and_the_rate_is_the_difference_of_two_looks():
    now, before = load(12, 300), load(10, 200)
    text = text_of(table([service("chat")], {("team", "chat"): now}, {("team", "chat"): before}))
    row = text.splitlines()[1].split()
    assert row == ["team", "chat", "True", "2/3", "25%", "6", "4", "100", "Ready"]


def test_another_runtimes_names_are_read():
    made = Load(0)
    made.add(VLLM, "VLLM")
    assert (made.answered, made.active_tokens, made.capacity_tokens, made.generated) == (1, 800, 1600, 10)


def test_a_pod_without_metrics_is_unknown_and_never_counted_as_idle():
    made = load(0, 5, pods=1)
    made.add(None, "Octavo")
    made.add("octavo_requests_running 1\n", "Octavo")
    assert (made.pods, made.answered, made.running) == (3, 1, 3)
    text = text_of(table([service("chat")], {("team", "chat"): made}, {}))
    assert "2 of 3 pods without metrics" in text


def test_a_service_of_which_nothing_is_known_shows_dashes():
    row = text_of(table([{"metadata": {"namespace": "a", "name": "b"}, "spec": {}}], {}, {})).splitlines()[1].split()
    assert row == ["a", "b", "Unknown", "0/0", "–", "–", "–", "–"]


@pytest.mark.parametrize("before", [None, load(10, 900), load(12, 200), load(10, 200, pods=1), Load(10)])
def test_no_rate_is_told_after_a_first_look_a_restart_or_a_change_of_pods(before):
    assert rate(load(12, 300), before) is None


def test_quantiles_of_streams_are_of_nearest_rank():
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([1], 0.95) == 1
    text = text_of(bench_table([Stream(0.1, 1.1, 11), Stream(0.3, 0.3, 1)], 2.0))
    assert "300.0" in text
    assert "100.0" in text
    assert "6.0" in text


def test_prompts_differ_from_their_first_words_and_have_the_asked_length():
    one, two = prompt(1, 40), prompt(2, 40)
    assert len(one.split()) == 40
    assert one.split()[:2] != two.split()[:2]


def test_the_contexts_namespace_is_taken_as_kubectl_takes_it(tmp_path, monkeypatch):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("current-context: two\ncontexts: []\n")
    second.write_text("current-context: x\ncontexts:\n- {name: two, context: {cluster: c, namespace: team}}\n")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'missing'}")
    assert current_namespace() == "team"
    monkeypatch.setenv("KUBECONFIG", str(first))
    assert current_namespace() == "default"


def test_without_a_kubeconfig_one_line_says_what_to_set(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["top", "--once"]) == 1
    assert "set KUBECONFIG" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["top", "--seconds", "0"], ["bench", "x", "--tokens", "none"], ["init"], [], ["top", "-A", "-n", "a"]],
)
def test_wrong_flags_are_refused_in_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
