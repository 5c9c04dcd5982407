"""saguaro_core.models: finding, checking and loading models, on tiny ones made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3NextConfig,
    T5Config,
    ViTConfig,
)  # fmt: skip

from saguaro_core.models import (
    EMBEDDED_DRAFT,
    ModelError,
    Source,
    check_supported,
    context_length,
    default_dtype,
    full_vocabulary,
    load_config,
    load_draft,
    load_target,
    resolve,
)  # fmt: skip

from .tiny import CONTEXT, KINDS, tiny_config, tiny_draft, tiny_model, tiny_tokenizer

CPU, FP32 = "cpu", torch.float32
PROMPT = torch.tensor([[1, 40, 41, 42, 43, 44]])


def source(path: Path) -> Source:
    return resolve(str(path), "target")


def one_line(caught: pytest.ExceptionInfo) -> str:
    text = str(caught.value)
    assert text and "\n" not in text
    return text


# -- finding ----------------------------------------------------------------------------------------------------------


def test_a_folder_and_a_gguf_file_resolve(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "some-model.gguf").touch()
    assert resolve(str(tmp_path), "target") == Source(tmp_path.name, str(tmp_path), None)
    found = resolve(str(tmp_path / "some-model.gguf"), "draft")
    assert found == Source("some-model", str(tmp_path), "some-model.gguf")


def test_the_embedded_draft_is_shipped():
    draft = resolve("embedded", "draft")
    assert draft.path == str(EMBEDDED_DRAFT) and (EMBEDDED_DRAFT / "model.safetensors").is_file()
    assert load_config(draft).saguaro["embeddings"] == "target"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{tmp}", "no config.json"),
        ("{tmp}/notes.txt", "is not a model"),
        ("{tmp}/missing", "no such file or folder"),
        ("{tmp}/missing.gguf", "no such file or folder"),
        ("./missing", "no such file or folder"),
        ("not a hub id", "neither a file or folder here nor a valid hub id"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(tmp_path, spec, says):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match=says) as caught:
        resolve(spec.format(tmp=tmp_path), "target")
    one_line(caught)


def test_a_hub_id_offline_is_said_in_one_line(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="some-model is not on this disk and the model hub cannot be") as caught:
        resolve("some-owner/some-model", "target")
    one_line(caught)


# -- checking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_supported(kind):
    check_supported(tiny_config(kind))
    assert context_length(tiny_config(kind)) == CONTEXT


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (MambaConfig(), "linear_attention"),
        (Qwen3NextConfig(), "linear_attention"),
        (DeepseekV3Config(), "multi-head latent attention"),
        (Llama4TextConfig(), "chunked_attention"),
        (GptOssConfig(), "attention sinks"),
        (BloomConfig(), "attention interface"),
        (T5Config(), "encoder-decoder"),
        (ViTConfig(), "not causal language models"),
        (MistralConfig(sliding_window=128), "only sees the last 128 tokens"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (
            LlamaConfig(
                rope_parameters={
                    "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0] * 64,
                    "long_factor": [2.0] * 64, "original_max_position_embeddings": 1024,
                }
            ),
            "longrope",
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)  # fmt: skip
def test_unsupported_is_said_in_one_line(config, says):
    with pytest.raises(ModelError, match=says) as caught:
        check_supported(config)
    assert config.model_type in one_line(caught)


def test_a_sliding_window_bounds_the_context():
    config = tiny_config("gemma2", max_position_embeddings=8192, sliding_window=4096)
    check_supported(config)
    assert context_length(config) == 4096


def test_a_window_that_no_layer_uses_does_not_bound_the_context():
    config = tiny_config("qwen3", max_position_embeddings=8192, sliding_window=256, use_sliding_window=False)
    check_supported(config)
    assert context_length(config) == 8192


def test_default_dtype_follows_the_cpu(monkeypatch):
    for capabilities, dtype in [
        ({}, torch.float32),
        ({"avx512_bf16": False, "amx_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert default_dtype("cpu") == dtype


# -- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_loads_as_transformers_has_it(tmp_path, kind):
    path = tiny_model(tmp_path, kind)
    model = load_target(source(path), CPU, FP32)
    assert not model.training and not any(weight.requires_grad for weight in model.parameters())
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(path)(PROMPT).logits
        assert torch.equal(model(PROMPT).logits, expected)
    assert load_target(source(path), CPU, torch.bfloat16).dtype == torch.bfloat16


def test_a_broken_checkpoint_is_said_in_one_line(tmp_path):
    path = tiny_model(tmp_path)
    (path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=f"cannot load {tmp_path.name}: ") as caught:
        load_target(source(path), CPU, FP32)
    one_line(caught)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    target_path, draft_path = tiny_model(tmp_path / "target"), tiny_draft(tmp_path / "draft")
    for path in (target_path, draft_path):
        tensors = load_file(path / "model.safetensors")
        del tensors["model.layers.0.mlp.up_proj.weight"], tensors["model.norm.weight"]
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="draft is incomplete: it lacks model.layers.0.mlp.up_proj.weight and 1 more"):
        load_draft(source(draft_path), source(target_path), CPU, FP32)
    with pytest.raises(ModelError, match="target is incomplete"):
        load_target(source(target_path), CPU, FP32)


def test_an_unknown_architecture_is_said_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(ModelError, match="no-such-model") as caught:
        load_target(source(tmp_path), CPU, FP32)
    one_line(caught)


def test_a_target_is_checked_before_its_weights_are_read(tmp_path):
    MambaConfig(num_hidden_layers=1).save_pretrained(tmp_path)  # and no weights at all
    with pytest.raises(ModelError, match="mamba models are not supported"):
        load_target(source(tmp_path), CPU, FP32)


def test_an_ordinary_model_is_a_draft(tmp_path):
    path = tiny_model(tmp_path)
    model, head_ids = load_draft(source(path), source(path), CPU, FP32)
    assert head_ids is None and model(PROMPT).logits.shape == (1, 6, 320)
    assert full_vocabulary(model, head_ids) is model


@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_folder_takes_its_embeddings_from_the_target(tmp_path, tied, monkeypatch):
    target_path = tiny_model(tmp_path / "target", tie_word_embeddings=tied)
    draft_path = tiny_draft(tmp_path / "draft")
    target = load_target(source(target_path), CPU, FP32)
    monkeypatch.setattr("saguaro_core.models.load_target", None)  # the embeddings alone are read, not the target
    model, head_ids = load_draft(source(draft_path), source(target_path), CPU, FP32)
    stored = load_file(draft_path / "model.safetensors")

    assert type(model).__name__ == "LlamaForCausalLM" and not model.training
    assert head_ids.dtype == torch.int64 and torch.equal(head_ids, stored["head_ids"].long())
    assert torch.equal(model.get_input_embeddings().weight, target.get_input_embeddings().weight)
    assert torch.equal(model.get_output_embeddings().weight, target.get_output_embeddings().weight[head_ids])
    weights = model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in stored.items() if name != "head_ids")
    assert model(PROMPT).logits.shape == (1, 6, len(head_ids))
    assert load_draft(source(draft_path), source(target_path), CPU, torch.bfloat16)[0].dtype == torch.bfloat16


def test_a_draft_folder_equals_the_model_it_was_cut_from(tmp_path):
    """With all layers, the target's own, it is the target, seen through the rows of `head_ids`."""
    target_path = tiny_model(tmp_path / "target")
    head_ids = torch.arange(3, 320, 5)
    config = AutoConfig.from_pretrained(target_path)
    config.saguaro = {"embeddings": "target"}
    config.save_pretrained(tmp_path / "draft")
    tensors = load_file(target_path / "model.safetensors")
    del tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    save_file(tensors | {"head_ids": head_ids}, tmp_path / "draft" / "model.safetensors")

    model, found = load_draft(source(tmp_path / "draft"), source(target_path), CPU, FP32)
    target = load_target(source(target_path), CPU, FP32)
    assert torch.equal(found, head_ids)
    torch.testing.assert_close(model(PROMPT).logits, target(PROMPT).logits[..., head_ids])

    full = full_vocabulary(model, head_ids)
    logits = full(PROMPT).logits
    assert torch.equal(logits[..., head_ids], model(PROMPT).logits)
    assert logits.shape[-1] == 320 and logits.isfinite().sum() == PROMPT.numel() * len(head_ids)
    assert full.get_input_embeddings() is model.get_input_embeddings()  # a view: nothing is copied
    assert full.get_output_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()


def test_assisted_generation_accepts_tokens_of_a_full_vocabulary_view(tmp_path):
    target_path = tiny_model(tmp_path / "target", eos_token_id=None)
    config = AutoConfig.from_pretrained(target_path)
    config.saguaro = {"embeddings": "target"}
    config.save_pretrained(tmp_path / "draft")
    tensors = load_file(target_path / "model.safetensors")
    del tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    save_file(tensors | {"head_ids": torch.arange(10, 320)}, tmp_path / "draft" / "model.safetensors")
    model, head_ids = load_draft(source(tmp_path / "draft"), source(target_path), CPU, FP32)
    target = load_target(source(target_path), CPU, FP32)
    calls = []
    target.register_forward_hook(lambda *_: calls.append(1))

    def generate(**assistant) -> tuple[torch.Tensor, int]:
        calls.clear()
        return target.generate(PROMPT, max_new_tokens=24, do_sample=False, **assistant), len(calls)

    plain, plain_calls = generate()
    right, right_calls = generate(assistant_model=full_vocabulary(model, head_ids))
    wrong, wrong_calls = generate(assistant_model=model)
    assert torch.equal(right, plain) and plain_calls == 24
    assert right_calls <= 12  # near every token is accepted: the draft is the target but for ten head rows
    assert wrong_calls > right_calls  # head rows taken for token ids


def test_a_draft_for_another_target_is_refused(tmp_path):
    target_path = tiny_model(tmp_path / "target", vocab=384)
    with pytest.raises(ModelError, match=r"made for another target.*\(320, 32\).*\(384, 32\)") as caught:
        load_draft(source(tiny_draft(tmp_path / "draft")), source(target_path), CPU, FP32)
    one_line(caught)


def test_a_draft_folder_cannot_be_a_target(tmp_path):
    with pytest.raises(ModelError, match="borrows its target's embeddings"):
        load_target(source(tiny_draft(tmp_path)), CPU, FP32)


def test_embeddings_are_found_in_a_sharded_checkpoint(tmp_path):
    target_path = tiny_model(tmp_path / "target")
    load_target(source(target_path), CPU, FP32).save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    draft = source(tiny_draft(tmp_path / "draft"))
    whole, _ = load_draft(draft, source(target_path), CPU, FP32)
    sharded, _ = load_draft(draft, source(tmp_path / "sharded"), CPU, FP32)
    assert torch.equal(whole(PROMPT).logits, sharded(PROMPT).logits)


def test_a_gguf_file_loads_and_lends_its_embeddings(tmp_path):
    reference = load_target(source(tiny_model(tmp_path / "reference")), CPU, FP32)
    file = write_gguf(tmp_path / "tiny.gguf", reference)
    model = load_target(resolve(str(file), "target"), CPU, FP32)
    torch.testing.assert_close(model(PROMPT).logits, reference(PROMPT).logits)
    assert context_length(model.config) == CONTEXT
    draft, head_ids = load_draft(source(tiny_draft(tmp_path / "draft")), resolve(str(file), "target"), CPU, FP32)
    assert torch.equal(draft.get_input_embeddings().weight, reference.get_input_embeddings().weight)


def write_gguf(path: Path, model) -> Path:
    """The weights of a tiny Llama as a float32 GGUF file, with its tokenizer."""
    import gguf

    config, weights = model.config, model.state_dict()
    tokenizer = json.loads((tiny_tokenizer(path.parent / "tokenizer") / "tokenizer.json").read_text())["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    tokens += [f"[PAD{id}]" for id in range(len(tokens), config.vocab_size)]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["merges"]])
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in weights.items():
        for part, count in heads.items():  # GGUF keeps the two halves of a rotary pair next to each other
            if part in name:
                out, hidden = tensor.shape
                tensor = tensor.reshape(count, 2, out // count // 2, hidden).transpose(1, 2).reshape(out, hidden)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
