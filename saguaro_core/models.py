"""From what the user names to modules the engine can run: resolve, check, load.

Every model is an ordinary transformers causal language model. A draft may also be a *draft folder*: a `config.json`
with `"saguaro": {"embeddings": "target"}` and a `model.safetensors` that holds the layers, the final norm and
`head_ids`. Its embedding, and the rows `head_ids` of its output head, are the target's own, taken at load, so
nothing is stored twice; such a draft gives zero probability to every token outside `head_ids`, but for those of the
run's prompts (see `head`).

Every failure a user can cause is a ModelError with one clear line.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.distributed import DistributedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from .embedded import (
    EMBEDDED_DRAFT,
    EMBEDDED_TARGET_NAME,
    ModelError,
    Progress,
    embedded_target,
    quiet_loading,
)  # fmt: skip
from .head import CutHead, linear

EMBEDDED = "embedded"
SMALLEST_WINDOW = 1024  # tokens; a model whose attention sees less is refused rather than run with so short a context
HUB_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.safetensors"]


@dataclass(frozen=True)
class Source:
    """Where a model is: a folder at `path` and, for GGUF, the name of the file in it. `name` is for people."""

    name: str
    path: str
    gguf_file: str | None = None

    @property
    def gguf(self) -> dict[str, str]:
        """Keyword arguments that tell transformers' `from_pretrained` about the GGUF file, if there is one."""
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}


# -- finding ----------------------------------------------------------------------------------------------------------


def resolve(spec: str, role: Literal["target", "draft"], progress: Progress | None = None) -> Source:
    """The model that `spec` names: "embedded", a local folder, a `.gguf` file or a hub id.

    Fetches what is not on this disk yet. Raises ModelError when there is no such model or it cannot be fetched.
    """
    if spec == EMBEDDED:
        if role == "draft":
            return Source(EMBEDDED_DRAFT.name, str(EMBEDDED_DRAFT))
        return Source(EMBEDDED_TARGET_NAME, str(embedded_target(progress)))
    path = Path(spec).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{spec} is not a model folder: it has no config.json")
        return Source(path.resolve().name, str(path.resolve()))
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{spec} is not a model: give a folder, a .gguf file or a hub id")
        return Source(path.stem, str(path.resolve().parent), path.name)
    return Source(spec, _hub_folder(spec))


def _hub_folder(spec: str) -> str:
    """Local snapshot of the hub repository `spec`, fetched where it is not cached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )  # fmt: skip

    if spec.endswith(".gguf") or spec.count("/") > 1 or spec.startswith((".", "~")):
        raise ModelError(f"{spec}: no such file or folder")
    try:
        return snapshot_download(spec, allow_patterns=HUB_FILES)
    except HFValidationError:
        raise ModelError(f"{spec!r} is neither a file or folder here nor a valid hub id") from None
    except GatedRepoError:
        raise ModelError(f"{spec} is gated: accept its terms on its hub page and log in with `hf auth login`") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{spec} is neither a file or folder here nor a model on the hub") from None
    except LocalEntryNotFoundError:
        raise ModelError(
            f"{spec} is not on this disk and the model hub cannot be reached; give a local folder, a .gguf file or "
            f"{EMBEDDED!r}, or try again online"
        ) from None
    except Exception as error:  # an HTTP library's own errors, a full disk: whatever it is, one line says it
        raise ModelError(f"cannot fetch {spec} from the model hub: {_first_line(error)}") from error


# -- checking ---------------------------------------------------------------------------------------------------------


def load_config(source: Source) -> PretrainedConfig:
    """The model's configuration. Raises ModelError."""
    with _errors_as_one_line(source):
        return AutoConfig.from_pretrained(source.path, **source.gguf)


def uses_target_embeddings(config: PretrainedConfig) -> bool:
    """Whether this is the configuration of a draft folder, whose embeddings are the target's."""
    return (getattr(config, "saguaro", None) or {}).get("embeddings") == "target"


def check_supported(config: PretrainedConfig) -> None:
    """Raise ModelError if the engine cannot run such a model: it needs keys and values for every past token in every
    layer, positions that do not depend on the length of the text, and transformers' attention interface."""
    reason = _unsupported_reason(config)
    if reason:
        raise ModelError(f"{config.model_type} models are not supported: {reason}")


def check_divides(source: Source, ranks: int) -> None:
    """Raise ModelError if the heads of this model cannot be shared out among so many devices."""
    text = load_config(source).get_text_config(decoder=True)
    heads = text.num_attention_heads
    keys = getattr(text, "num_key_value_heads", None) or heads
    if heads % ranks or keys % ranks:
        raise ModelError(
            f"{source.name} has {heads} attention heads and {keys} of keys and values, "
            f"which {ranks} devices cannot share evenly"
        )
    if not getattr(load_config(source), "base_model_tp_plan", None):
        raise ModelError(f"transformers has no tensor-parallel plan for {text.model_type} models")


def _unsupported_reason(config: PretrainedConfig) -> str | None:
    if config.is_encoder_decoder:
        return "they are encoder-decoder models"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "they are not causal language models that transformers knows"
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    text = config.get_text_config(decoder=True)
    layer_types, _ = get_layer_types_and_kwargs(text)
    if other := sorted(set(layer_types) - {"full_attention", "sliding_attention"}):
        return f"their cache has layers other than full attention ({', '.join(other)})"
    if any(getattr(layer, "kv_lora_rank", None) for layer in text.per_layer_config):
        return "they use multi-head latent attention"
    if not (model._supports_attention_backend and model._can_set_attn_implementation()):
        return "they do not use transformers' attention interface"
    if not model._supports_sdpa and getattr(text, "attn_logit_softcapping", None) is None:
        return "their attention needs more than scaled dot products (attention sinks or a position bias)"
    if not {"position_ids", "logits_to_keep", "cache"} <= inspect.signature(model.forward).parameters.keys():
        return "their forward does not take explicit positions and a cache"
    if changing := sorted(kind for kind in _rope_types(text) if "dynamic" in kind or kind == "longrope"):
        return f"their rotary positions change with the length of the text ({', '.join(changing)})"
    longest = getattr(text, "max_position_embeddings", None)
    if not longest:
        return "their configuration does not state the longest context"
    window = _attention_window(text)
    if window is not None and window < min(SMALLEST_WINDOW, longest):
        return f"their attention only sees the last {window} tokens"
    return None


def _rope_types(text: PretrainedConfig) -> set[str]:
    """RoPE types in use; `rope_parameters` is one set of parameters, or one for each layer type."""
    parameters = getattr(text, "rope_parameters", None) or {}
    each = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return {one["rope_type"] for one in each if one.get("rope_type")}


def _attention_window(text: PretrainedConfig) -> int | None:
    """The narrowest sliding window in use, in tokens (the current one included), or None."""
    _, layers = get_layer_types_and_kwargs(text)
    windows = [layer["sliding_window"] for layer in layers if layer.get("sliding_window")]
    return min(windows, default=None)


def context_length(config: PretrainedConfig) -> int:
    """The most tokens, prompt and answer together, that the engine runs this model with.

    Within its sliding window, sliding attention is full attention, so a model with a window is run up to the window.
    """
    text = config.get_text_config(decoder=True)
    return min(text.max_position_embeddings, _attention_window(text) or text.max_position_embeddings)


def default_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it in hardware (AVX-512-BF16 or AMX-BF16 on a CPU), else float32."""
    if torch.device(device).type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    cpu = torch.cpu.get_capabilities()
    return torch.bfloat16 if cpu.get("avx512_bf16") or cpu.get("amx_bf16") else torch.float32


def common_dtype(*devices: str) -> str:
    """The name of the dtype that is fast on all of these devices."""
    return str(min((default_dtype(device) for device in devices), key=lambda d: d == torch.bfloat16))[6:]


# -- loading ----------------------------------------------------------------------------------------------------------


def load_target(
    source: Source, device: str | torch.device, dtype: torch.dtype, distributed: DistributedConfig | None = None
) -> PreTrainedModel:
    """The model in eval mode on `device`, without gradients; `distributed`: this process's share of it. Raises
    ModelError."""
    config = load_config(source)
    check_supported(config)
    if uses_target_embeddings(config):
        raise ModelError(f"{source.name} is a draft that borrows its target's embeddings; it cannot run alone")
    options = {"quantization_config": GgufConfig(dequantize=True)} if source.gguf_file else {}
    if distributed is not None:
        options["distributed_config"] = distributed
    with _errors_as_one_line(source), quiet_loading():
        model, info = AutoModelForCausalLM.from_pretrained(
            source.path, dtype=dtype, output_loading_info=True, **source.gguf, **options
        )
        _check_complete(source, info)
        return _frozen(model, device)


def load_draft(
    source: Source, target_source: Source, device: str | torch.device, dtype: torch.dtype
) -> tuple[PreTrainedModel, torch.Tensor | None]:
    """The draft on `device`, and the target ids of its logits' columns: `head_ids` (int64 [columns], on `device`).

    `head_ids` is None for an ordinary model, whose column i is token i. Raises ModelError.
    """
    config = load_config(source)
    if not uses_target_embeddings(config):
        return load_target(source, device, dtype), None
    check_supported(config)
    with _errors_as_one_line(source):
        tensors = load_file(Path(source.path) / "model.safetensors")
        head_ids = tensors.pop("head_ids").to(torch.int64)
    embedding, head = _target_embeddings(target_source, dtype)
    if tuple(embedding.shape) != (config.vocab_size, config.hidden_size):
        raise ModelError(
            f"{source.name} was made for another target: it needs embeddings of shape "
            f"{(config.vocab_size, config.hidden_size)}, {target_source.name} has {tuple(embedding.shape)}"
        )
    with _errors_as_one_line(source), quiet_loading():
        model, info = _model_from_tensors(config, tensors, embedding, dtype)
        _check_complete(source, info)
        model.set_output_embeddings(CutHead(head, head_ids, dtype))
        model.config.tie_word_embeddings = False
        return _frozen(model, device), head_ids.to(device)


def full_vocabulary(model: PreTrainedModel, head_ids: torch.Tensor | None) -> PreTrainedModel:
    """A view of a draft whose logits have a column for every target token, -inf outside `head_ids`.

    The weights are shared with `model`, which stays as it is. For transformers' assisted generation: it takes
    columns for token ids, and would otherwise accept almost nothing without saying so.
    """
    if head_ids is None:
        return model
    cut, columns = model.get_output_embeddings(), model.config.vocab_size

    def scatter(_: nn.Module, __: tuple, logits: torch.Tensor) -> torch.Tensor:
        full = logits.new_full((*logits.shape[:-1], columns), float("-inf"))
        return full.index_copy_(-1, head_ids, logits)

    head = linear(cut.weight)
    head.register_forward_hook(scatter)
    view = copy.copy(model)
    view._modules = dict(model._modules)
    view.set_output_embeddings(head)
    return view


def _check_complete(source: Source, info: dict) -> None:
    """Transformers fills weights that a checkpoint lacks with random numbers; here that is an error."""
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{source.name} is incomplete: it lacks {missing[0]} and {len(missing) - 1} more weights")


def _frozen(model: PreTrainedModel, device: str | torch.device) -> PreTrainedModel:
    return model.to(device).eval().requires_grad_(False)


def _model_from_tensors(
    config: PretrainedConfig, tensors: dict[str, torch.Tensor], embedding: torch.Tensor, dtype: torch.dtype
) -> tuple[PreTrainedModel, dict]:
    """The model of `config` with the weights `tensors` and `embedding`, and transformers' report on its loading. Its
    head is tied to the embedding, so that transformers neither misses nor invents one."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = True
    name, _ = embedding_names(config)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return model.from_pretrained(
        None, config=config, state_dict={**tensors, name: embedding}, dtype=dtype, output_loading_info=True
    )


def embedding_names(config: PretrainedConfig) -> tuple[str, str]:
    """Names of the input and the output embedding's weights in a checkpoint; the same name where they are tied."""
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    names = {id(tensor): name for name, tensor in skeleton.named_parameters()}
    embeddings = skeleton.get_input_embeddings(), skeleton.get_output_embeddings()
    return names[id(embeddings[0].weight)], names[id(embeddings[1].weight)]


def _target_embeddings(source: Source, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's input and output embeddings [vocabulary, hidden], reading no other tensor where possible."""
    if source.gguf_file is None:
        with _errors_as_one_line(source):
            found = _read_tensors(Path(source.path), embedding_names(load_config(source)))
        if found is not None:
            return found
    target = load_target(source, "cpu", dtype)
    return target.get_input_embeddings().weight, target.get_output_embeddings().weight


def _read_tensors(folder: Path, names: tuple[str, ...]) -> tuple[torch.Tensor, ...] | None:
    """Tensors of a checkpoint by name; None where one is missing or quantised."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as checkpoint:
            for name in set(names) & set(checkpoint.keys()):
                found[name] = checkpoint.get_tensor(name)
    if any(name not in found or not found[name].is_floating_point() for name in names):
        return None
    return tuple(found[name] for name in names)


@contextmanager
def _errors_as_one_line(source: Source) -> Iterator[None]:
    """Turn whatever transformers, safetensors or the file system raise into a ModelError that names the model."""
    try:
        yield
    except ModelError:
        raise
    except (OSError, ValueError, LookupError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load {source.name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "").strip() or type(error).__name__
