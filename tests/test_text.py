"""saguaro_core.text: prompts to ids, ids to streamed text, agreement of tokenizers, ends of turn, stop strings."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from saguaro_core.models import ModelError, Source
from saguaro_core.text import (
    NO_TEMPLATE,
    Detokenizer,
    PromptError,
    StopStrings,
    check_pair_agrees,
    check_tokens_agree,
    encode_prompt,
    eos_ids,
    load_tokenizer,
)  # fmt: skip

from .tiny import tiny_draft, tiny_model, tiny_tokenizer

TEXTS = [
    "Hello, the world!",
    "  leading and   inner spaces \n\n\tand tabs ",
    "emoji 👩‍👩‍👧‍👦🏳️‍🌈 and 🦉 at the end 🌵",
    "日本語の文章、中文字符，한국어",
    "مرحبا بالعالم",
    "def f(x):\n    return {'a': [x ** 2, \"ü\"]}\n",
    "a genuine \ufffd in the text \ufffd\ufffd",
    "e\u0301 combining, ﬁ ligature, \u200b zero width, \x00 control",
    "",
]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("byte-level")))


@pytest.fixture(scope="module")
def byte_fallback() -> PreTrainedTokenizerFast:
    """A tokenizer of the SentencePiece family: word pieces that begin with a space mark, bytes for all else."""
    words = ["▁", "▁Hello", "▁world", "Hello", "the", "▁the", "e", "é", "日", "\ufffd", ",", "."]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, [], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def stream(tokenizer, ids: list[int], pieces: random.Random | None = None) -> list[str]:
    detokenizer, texts, at = Detokenizer(tokenizer), [], 0
    while at < len(ids):
        step = pieces.randint(1, 5) if pieces else 1
        texts.append(detokenizer.push(ids[at : at + step]))
        at += step
    return [*texts, detokenizer.finish()]


# -- decoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_text(byte_level, text):
    ids = byte_level(text, add_special_tokens=False).input_ids
    assert "".join(stream(byte_level, ids)) == text


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_streamed_text_equals_the_full_decode_for_any_ids(kind, request):
    tokenizer = request.getfixturevalue(kind)
    random_ = random.Random(0)
    for _ in range(300):
        # ids beyond the vocabulary too: a padded vocabulary can yield them
        ids = [random_.randrange(len(tokenizer) + 8) for _ in range(random_.randint(0, 40))]
        assert "".join(stream(tokenizer, ids)) == decode(tokenizer, ids), ids
        assert "".join(stream(tokenizer, ids, random_)) == decode(tokenizer, ids), ids


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_streamed_text_equals_the_full_decode_of_broken_utf8(kind, request):
    """Sequences cut, repeated and interleaved: the bytes that incomplete and invalid UTF-8 is made of."""
    tokenizer = request.getfixturevalue(kind)
    spelling = {"byte_level": byte_level_token, "byte_fallback": lambda byte: f"<0x{byte:02X}>"}[kind]
    alphabet = [0xF0, 0x9F, 0x8C, 0xB5, 0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0xFF, 0x80, 0x41, 0xED, 0xA0]
    ids_of = [tokenizer.convert_tokens_to_ids(spelling(byte)) for byte in alphabet]
    random_ = random.Random(1)
    for _ in range(400):
        ids = random_.choices(ids_of, k=random_.randint(1, 24))
        assert "".join(stream(tokenizer, ids)) == decode(tokenizer, ids), ids
        assert "".join(stream(tokenizer, ids, random_)) == decode(tokenizer, ids), ids


def byte_level_token(byte: int) -> str:
    """How byte-level tokenizers spell a byte: itself where printable, else the n-th character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(0x100 + others.index(byte))


def test_text_is_shown_as_soon_as_it_is_complete(byte_level):
    ids = byte_level("ab🌵c", add_special_tokens=False).input_ids
    texts = stream(byte_level, ids)
    assert texts[:2] == ["a", "b"] and texts[-3:] == ["🌵", "c", ""]
    assert set(texts[2:-3]) == {""}


def test_a_piece_is_released_up_to_the_incomplete_character(byte_level):
    ids = byte_level("ab🌵", add_special_tokens=False).input_ids
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push(ids[:-1]) == "ab"
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_cost_per_token_is_bounded_even_for_garbage(kind, request, monkeypatch):
    tokenizer = request.getfixturevalue(kind)
    garbage = tokenizer.convert_tokens_to_ids(byte_level_token(0x80) if kind == "byte_level" else "<0x80>")
    lengths = []
    real = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **kw: lengths.append(len(ids)) or real(ids, **kw))
    detokenizer = Detokenizer(tokenizer)
    for _ in range(200):
        detokenizer.push([garbage])
    assert max(lengths, default=0) <= 8
    assert len(lengths) <= 12 * 200


def test_special_tokens_give_no_text_and_keep_spaces(byte_fallback):
    ids = byte_fallback.convert_tokens_to_ids(["▁Hello", "</s>", "▁world", "<s>", "▁the"])
    assert stream(byte_fallback, ids) == ["Hello", "", " world", "", " the", ""]


# -- stop strings -----------------------------------------------------------------------------------------------------


def run_stops(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stopper, shown = StopStrings(stops), ""
    for piece in pieces:
        text, stopped = stopper.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + stopper.finish(), False


def test_text_is_cut_before_a_stop_string_across_pieces():
    assert run_stops(["END"], ["one E", "N", "D two"]) == ("one ", True)


def test_a_broken_off_match_is_shown():
    stopper = StopStrings(["END"])
    assert stopper.push("an E") == ("an ", False)
    assert stopper.push("Nx") == ("ENx", False)
    assert stopper.push("EN") == ("", False)
    assert stopper.finish() == "EN"


def test_without_stop_strings_nothing_is_held():
    assert StopStrings(["", ""]).push("anything") == ("anything", False)


def test_nothing_is_shown_after_a_stop():
    stopper = StopStrings(["\n\n"])
    assert stopper.push("a\n\nb") == ("a", True)
    assert stopper.push("c") == ("", True)
    assert stopper.finish() == ""


def test_the_result_does_not_depend_on_the_pieces():
    random_ = random.Random(2)
    for _ in range(500):
        text = "".join(random_.choices("abc", k=12))
        stops = ["".join(random_.choices("abc", k=random_.randint(1, 4))) for _ in range(random_.randint(1, 3))]
        cuts = sorted(random_.sample(range(13), 4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
        assert run_stops(stops, pieces) == run_stops(stops, list(text)) == run_stops(stops, [text])


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_a_string_is_one_user_turn(byte_level):
    ids, notice = encode_prompt(byte_level, "Hi the cat")
    assert byte_level.decode(ids) == "<|im_start|>user\nHi the cat<|im_end|>\n<|im_start|>assistant\n"
    assert notice is None and all(type(id) is int for id in ids)
    assert encode_prompt(byte_level, [{"role": "user", "content": "Hi the cat"}]) == (ids, None)


def test_without_a_template_the_text_is_continued(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path, chat=False))
    ids, notice = encode_prompt(tokenizer, "Once upon")
    assert tokenizer.decode(ids) == "Once upon" and notice == NO_TEMPLATE


@pytest.mark.parametrize(
    "prompt", ["", " \n\t", [], [{"role": "user", "content": ""}], [{"role": "user", "content": None}]]
)
def test_an_empty_prompt_is_refused(byte_level, prompt):
    with pytest.raises(PromptError, match="empty"):
        encode_prompt(byte_level, prompt)


def test_bos_is_never_doubled(byte_fallback):
    from tokenizers.processors import TemplateProcessing

    bos = byte_fallback.bos_token_id
    byte_fallback.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    assert byte_fallback("Hello").input_ids[0] == bos
    assert encode_prompt(byte_fallback, "<s>Hello")[0].count(bos) == 1
    assert encode_prompt(byte_fallback, "Hello")[0].count(bos) == 1
    byte_fallback.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    try:
        assert encode_prompt(byte_fallback, "Hello")[0].count(bos) == 1
    finally:
        byte_fallback.chat_template = None


def test_a_template_that_refuses_is_one_line(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path))
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(PromptError, match="System role not supported") as caught:
        encode_prompt(tokenizer, "Hi")
    assert "\n" not in str(caught.value)


# -- agreement and ends of turn ---------------------------------------------------------------------------------------


def test_equal_token_maps_agree_whatever_the_vocabulary_size(tmp_path, byte_level):
    padded = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path))
    padded.add_tokens(["<pad-a>", "<pad-b>"])
    assert len(padded) != len(byte_level)
    check_tokens_agree(byte_level, padded)
    check_tokens_agree(padded, byte_level)


def test_a_mismatch_names_one_token(byte_level, byte_fallback):
    with pytest.raises(ModelError, match=r"tokenizers: token \d+ is '.*' to the target and '.*' to the draft"):
        check_tokens_agree(byte_level, byte_fallback)


def test_pairs(tmp_path):
    target = Source("target", str(tiny_model(tmp_path / "target")))
    tokenizer = load_tokenizer(target)
    check_pair_agrees(target, Source("same", str(tiny_model(tmp_path / "same", seed=1, layers=1))), tokenizer)
    check_pair_agrees(target, Source("draft", str(tiny_draft(tmp_path / "draft"))), tokenizer)
    with pytest.raises(ModelError, match="needs a vocabulary of 384 tokens, target has 320"):
        check_pair_agrees(target, Source("other", str(tiny_draft(tmp_path / "other", vocab=384))), tokenizer)


def test_a_model_without_tokenizer_says_so(tmp_path):
    with pytest.raises(ModelError, match="draft has no tokenizer"):
        load_tokenizer(Source("draft", str(tiny_draft(tmp_path))))


def test_all_end_of_turn_ids_count(tmp_path):
    path = tiny_model(tmp_path, eos_token_id=7)
    GenerationConfig(eos_token_id=[2, 9]).save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens([AddedToken("<|eot_id|>", special=True), AddedToken("<end_of_turn>", special=False)])
    eot = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    # 0 is <|endoftext|>, 2 is <|im_end|>; <end_of_turn> is ordinary text here
    assert eos_ids(Source("tiny", str(path)), tokenizer) == {0, 2, 7, 9, eot}


def test_importing_text_imports_neither_torch_nor_transformers():
    code = "import sys, saguaro_core.text; print({'torch', 'transformers'} & set(sys.modules))"
    root = Path(__file__).parent.parent
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
