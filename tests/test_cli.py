"""The command line as a user meets it, on tiny models: streams, JSON, and one line with exit status 2 for mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from saguaro_core import trace
from saguaro_core.events import RunFinished

from .tiny import tiny_draft, tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Options that name a tiny target and a draft folder for it."""
    folder = tmp_path_factory.mktemp("models")
    target, draft = tiny_model(folder / "target"), tiny_draft(folder / "draft")
    return ["--target", str(target), "--draft", str(draft)]


def saguaro(*args):
    return subprocess.run(
        [sys.executable, "-m", "saguaro_core", *map(str, args)], capture_output=True, text=True, timeout=120
    )


def one_line_error(result, *words):
    assert result.returncode == 2, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("saguaro: "), result.stderr
    for word in words:
        assert word in lines[0]


def test_generate(models, tmp_path):
    path = tmp_path / "trace.jsonl"
    result = saguaro("generate", "Hello there", "--max-new-tokens", 20, "--json", "--trace", path, *models)
    assert result.returncode == 0, result.stderr
    *_, last = result.stdout.splitlines()
    answer = json.loads(last)
    assert answer["text"] in result.stdout and len(answer["ids"]) <= 20
    assert {"ttft_s", "decode_tok_s", "hit_rate", "acceptance", "overhead_ms"} <= answer["summary"].keys()
    assert "tok/s" in result.stderr
    events = trace.load(path)
    assert isinstance(events[-1], RunFinished) and events[-1].summary == answer["summary"]


def test_bench(models, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"question_id": i, "category": "c", "turns": [f"Question {i}?", "And then?"]} for i in range(5)]
    prompts.write_text("\n".join(json.dumps(line) for line in [*lines, {"prompt": "plain"}]))
    result = saguaro("bench", "--prompts", prompts, "--limit", 3, "--turns", 2, "--max-new-tokens", 12, "--json",
                     "--methods", "ar,sd,ssd,hf-ar,hf-assisted", *models)  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["methods"].keys() == {"ar", "ar-unpadded", "sd", "ssd", "hf-ar", "hf-assisted"}
    assert {"decode_tok_s", "ttft_s", "tokens"} <= report["methods"]["ar"].keys()
    assert {"tokens_per_round", "acceptance"} <= report["methods"]["sd"].keys()
    assert {"hit_rate", "overlap", "overhead"} <= report["methods"]["ssd"].keys()
    assert {"sd/ar", "ssd/ar", "ssd/sd", "ssd/hf-assisted", "ar/hf-ar"} <= report["ratios"].keys()
    assert report["identical"]["of"] == 6
    if report["exact"]:
        assert report["identical"]["sd"] == report["identical"]["ssd"] == 6


def test_mistakes(models, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": ""}\n')
    one_line_error(saguaro("generate", "  ", *models), "empty")
    one_line_error(saguaro("generate", "long " * 3000, *models), "context")
    one_line_error(saguaro("generate", "hi", "--k", 99, *models), "K must be")
    one_line_error(saguaro("generate", "hi", "--method", "magic", *models), "magic")
    one_line_error(saguaro("generate", "hi", "--target-device", "tpu", *models), "tpu")
    one_line_error(saguaro("generate", "hi", "--target-device", "cuda:99", *models), "cuda:99")
    one_line_error(saguaro("generate", "hi", "--k", 16, "--fan-out", 15, *models), "fan-out")
    one_line_error(saguaro("bench", "--prompts", bad, *models), "line 1")
    one_line_error(saguaro("bench", "--prompts", tmp_path / "absent", *models), "absent")
    one_line_error(saguaro("generate", "hi", "--target", tmp_path / "nowhere"), "nowhere")
    one_line_error(saguaro("generate", "hi", "--target", "someone/no-such-model"), "someone/no-such-model")


def test_mismatched_tokenizers(tmp_path):
    target, draft = tiny_model(tmp_path / "target"), tiny_model(tmp_path / "draft")
    swapped = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = swapped["model"]["vocab"]
    a, b = sorted(vocabulary, key=vocabulary.get)[10:12]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (draft / "tokenizer.json").write_text(json.dumps(swapped))
    one_line_error(saguaro("generate", "hi", "--target", target, "--draft", draft), "token")


def test_unsupported_architecture(models, tmp_path):
    target = tiny_model(tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(
        json.dumps(config | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    )
    one_line_error(saguaro("generate", "hi", "--target", target, *models[2:]))
