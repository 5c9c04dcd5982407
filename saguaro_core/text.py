"""Text to token ids and back: tokenizers, prompts, ends of turn, incremental decoding, stop strings.

Importing this module imports neither torch nor transformers; `load_tokenizer` and `eos_ids` do when called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .embedded import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .models import Source

Message = dict[str, Any]  # {"role": "user" | "assistant" | "system", "content": text}

END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>", "<|eom_id|>",
    "<|return|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>",
)  # fmt: skip
NO_TEMPLATE = "This model has no chat template, so it continues the text as it stands instead of answering it."
REPLACEMENT = "\ufffd"  # what a decoder puts for bytes that are not UTF-8, or not yet
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


class PromptError(ValueError):
    """A prompt that cannot be answered. The message is one clear line for the user."""


# -- tokenizers -------------------------------------------------------------------------------------------------------


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises ModelError when it has none or it cannot be read."""
    from transformers import AutoTokenizer

    if not has_tokenizer(source):
        raise ModelError(f"{source.name} has no tokenizer")
    try:
        return AutoTokenizer.from_pretrained(source.path, **source.gguf)
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot parse
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"cannot load the tokenizer of {source.name}: {line}") from error


def has_tokenizer(source: Source) -> bool:
    """Whether the model comes with a tokenizer of its own (a GGUF file always does)."""
    return source.gguf_file is not None or any((Path(source.path) / name).is_file() for name in TOKENIZER_FILES)


def check_pair_agrees(target: Source, draft: Source, target_tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError unless draft and target mean the same tokens by the same ids; loads no weights."""
    from .models import load_config, uses_target_embeddings

    draft_config = load_config(draft)
    if uses_target_embeddings(draft_config):
        wanted, found = draft_config.vocab_size, load_config(target).get_text_config(decoder=True).vocab_size
        if wanted != found:
            raise ModelError(
                f"{draft.name} was made for another target: it needs a vocabulary of {wanted:,} tokens, "
                f"{target.name} has {found:,}"
            )
    if has_tokenizer(draft) or not uses_target_embeddings(draft_config):
        check_tokens_agree(target_tokenizer, load_tokenizer(draft))


def check_tokens_agree(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Raise ModelError, with one example, if an id means one token to the target and another to the draft.

    Compares token maps and not sizes: a vocabulary may be padded, and added tokens that only one side knows, or that
    the two sides name differently, do no harm.
    """
    of_target, of_draft = ({id: token for token, id in side.get_vocab().items()} for side in (target, draft))
    added = target.added_tokens_decoder.keys() & draft.added_tokens_decoder.keys()
    shared = (of_target.keys() & of_draft.keys()) - added
    for id in sorted(shared):
        if of_target[id] != of_draft[id]:
            raise ModelError(
                f"target and draft have different tokenizers: token {id} is {of_target[id]!r} to the target and "
                f"{of_draft[id]!r} to the draft"
            )
    if not shared:
        raise ModelError("target and draft have different tokenizers: they have no token in common")


def eos_ids(source: Source, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All token ids that end an answer: those the model's generation config, its config and its tokenizer state,
    and the special tokens by which the usual chat templates end a turn."""
    from transformers import GenerationConfig

    from .models import load_config

    config = load_config(source)
    stated = [config.get_text_config(decoder=True).eos_token_id, config.eos_token_id, tokenizer.eos_token_id]
    if (Path(source.path) / "generation_config.json").is_file() and source.gguf_file is None:
        stated.append(GenerationConfig.from_pretrained(source.path).eos_token_id)
    special = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    found = {special[token] for token in END_OF_TURN if token in special}
    for one in stated:
        found.update(one if isinstance(one, (list, tuple)) else [one])
    return frozenset(id for id in found if id is not None and id >= 0)


# -- prompts ----------------------------------------------------------------------------------------------------------


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | list[Message]) -> tuple[list[int], str | None]:
    """Token ids of a prompt, and a sentence for the user where something about it needs saying.

    A string is one user turn; a list is a chat whose last message is to be answered. Both go through the model's
    chat template; without one the text is plainly continued, which the sentence says. Raises PromptError for an
    empty prompt or one that the template refuses.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not messages or not str(messages[-1].get("content") or "").strip():
        raise PromptError("The prompt is empty.")
    if not tokenizer.chat_template:
        text = "\n\n".join(str(message["content"]) for message in messages)
        return _without_double_bos(tokenizer, tokenizer(text).input_ids), NO_TEMPLATE
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's author and may raise anything
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise PromptError(f"The model's chat template refused this prompt: {line}") from error
    # The template wrote the special tokens itself, the one at the beginning included.
    return tokenizer(text, add_special_tokens=False).input_ids, None


def _without_double_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


# -- decoding ---------------------------------------------------------------------------------------------------------


class Detokenizer:
    """Token ids in, text out, as soon as it is certain.

    The pieces that `push` and `finish` return, put together, are `tokenizer.decode(all ids, skip_special_tokens=True)`
    exactly (with `clean_up_tokenization_spaces=False`). Text is held back while later tokens could still change it:
    an incomplete UTF-8 sequence, or a run of single-byte tokens. A call decodes the new tokens, the few held back
    and the piece before, never the whole text.
    """

    # An incomplete UTF-8 sequence is at most 3 bytes, so at most this many tokens hold a part of it.
    INCOMPLETE = 3

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._before: list[int] = []  # tokens of the last piece: how the next one begins may depend on them
        self._held: list[int] = []  # tokens whose text has not been returned

    def push(self, ids: Iterable[int]) -> str:
        """Take further token ids; return the text that became certain with them, which may be empty."""
        self._held += [id for id in map(int, ids) if id not in self._special and self._token(id) is not None]
        # A run of byte tokens is decoded as a whole: one bad byte at its end changes what the whole run becomes.
        if not self._held or BYTE_TOKEN.fullmatch(self._token(self._held[-1])):
            return ""
        text = self._text(self._held)
        if not text.endswith(REPLACEMENT):
            return self._release(len(self._held), text)
        for cut in range(len(self._held) - 1, max(0, len(self._held) - 1 - self.INCOMPLETE), -1):
            head = self._text(self._held[:cut])
            # Equal means that no sequence crosses the cut: bytes that belong together give fewer characters together.
            if head + self._decode(self._held[cut:]) == text:
                return self._release(cut, head)
        return ""

    def finish(self) -> str:
        """The text still held back, as it decodes when nothing follows."""
        return self._release(len(self._held), self._text(self._held))

    def _release(self, count: int, text: str) -> str:
        if text:  # tokens without text of their own stay held: they may shape how the next one begins
            self._before, self._held = self._held[:count], self._held[count:]
        return text

    def _text(self, ids: list[int]) -> str:
        """Text of `ids` where they follow the piece before."""
        return self._decode(self._before + ids)[len(self._decode(self._before)) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _token(self, id: int) -> str | None:
        """The vocabulary's spelling of `id`, None for an id beyond it (a padded vocabulary)."""
        return self._tokenizer.convert_ids_to_tokens(id)


class StopStrings:
    """Cuts streamed text before the first stop string in it.

    Where stop strings overlap, the one that is complete first counts, so the result does not depend on how the text
    is divided into pieces. Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take further text; return the text that is safe to show, and whether a stop string has appeared."""
        if self.stopped:
            return "", True
        self._held += text
        found = [(self._held.index(stop) + len(stop), -len(stop)) for stop in self._stops if stop in self._held]
        if found:
            end, negative_length = min(found)  # of two that end together, the longer one
            shown, self._held, self.stopped = self._held[: end + negative_length], "", True
            return shown, True
        keep = len(self._held) - self._partial()
        shown, self._held = self._held[:keep], self._held[keep:]
        return shown, False

    def finish(self) -> str:
        """The text still held back, when no more will follow."""
        shown, self._held = self._held, ""
        return shown

    def _partial(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stops), default=0))
        return next(
            (n for n in range(longest, 0, -1) if any(stop.startswith(self._held[-n:]) for stop in self._stops)), 0
        )
