"""The names of split patterns in GGUF files, `tokenizer.ggml.pre`: all names of
llama.cpp.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, TokenizerError
from src.tokenizer.gguf_keys import PRE_TOKENIZERS, gguf_tokenizer
from src.tokenizer.pre_tokenizers import LLAMA_CPP_DEFAULT
from tests.model import tiny
from tests.support import llama_cpp
from tests.support.gguf_writer import gguf_bytes, llama_keys, llama_tensors
from tests.tokenizer.json_files import byte_letters
from tests.tokenizer.strings import KINDS, strings

# All names in llama.cpp, src/llama-vocab.cpp (`llama_vocab::impl::load`), commit
# 00ad355e009e83abf98f96a6ded7193b95763681. For glm4 versions of llama.cpp give different
# ids.
_LOADED = """
default llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano mpt
starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert
jina-v1-en jina-v2-code roberta-bpe refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2
olmo dbrx smaug-bpe chatglm-bpe jais tekken smollm codeshell exaone exaone4 minerva-7b megrez
trillion granite-docling hunyuan grok-2 solar-open mellum2 gpt-4o llama4 kanana2 talkie
"""
_REJECTED = """
minicpm5 deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon jais-2 gemma4
granite-embed-multi-311m sarvam-moe whitespace qwen35 poro-chat viking bloom gpt3-finnish exaone-moe
chameleon granite-embed-multi-97m tiny_aya cohere2moe superbpe
bailingmoe bailingmoe2 llada-moe seed-coder hunyuan-dense hy_v4 joyai-llm kimi-k2 ufakzeka afmoe
laguna minimax-m2 glm4
"""
LOADED = set(_LOADED.split())
REJECTED = set(_REJECTED.split())
COMPOSING = ("qwen2", "deepseek-r1-qwen")
# Words without a merge, which only names with `ignore_merges` find.
WHOLE_WORDS = ("attention", "\u0120attention", "\u0120Llama")
PATH = Path("a.gguf")
G = "tokenizer.ggml."


def frequent_merges(texts: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Train merges that ignore words, so that they reach across every place of a
    split.
    """
    letters = byte_letters()
    merges = list[tuple[str, str]]()
    words = [[letters[byte] for byte in text.encode()] for text in texts]
    for _ in range(count):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        pair = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(pair)
        for number, word in enumerate(words):
            merged: list[str] = []
            for symbol in word:
                if merged and (merged[-1], symbol) == pair:
                    merged[-1] += symbol
                else:
                    merged.append(symbol)
            words[number] = merged
    return merges


@cache
def vocabulary_keys() -> dict[str, Any]:
    texts = [text for kind in KINDS if kind != "long" for text in strings(kind, 3, 30)]
    encodable = [text.encode(errors="replace").decode() for text in texts]
    merges = frequent_merges(encodable, 300)
    merged = [left + right for left, right in merges]
    names = list(
        dict.fromkeys([*byte_letters(), *merged, *WHOLE_WORDS, "<|bos|>", "<|eos|>"])
    )
    return {
        G + "model": "gpt2",
        G + "tokens": names,
        G + "token_type": [*[1] * (len(names) - 2), 3, 3],
        G + "merges": [" ".join(pair) for pair in merges],
        G + "bos_token_id": len(names) - 2,
        G + "eos_token_id": len(names) - 1,
    }


def keys_of(pre: str | None, **changes: Any) -> dict[str, Any]:
    keys = vocabulary_keys() | {G + name: value for name, value in changes.items()}
    return keys if pre is None else keys | {G + "pre": pre}


def tokenizer_of(keys: dict[str, Any]) -> Tokenizer:
    tokenizer = gguf_tokenizer(PATH, keys)
    assert tokenizer is not None
    return tokenizer


def llama_cpp_of(path: Path, keys: dict[str, Any]) -> llama_cpp.LlamaCpp:
    """Load a tiny model with a tokenizer in llama.cpp."""
    vocab = len(keys[G + "tokens"])
    sizes = replace(
        tiny.GROUPED, dim=64, heads=2, kv_heads=1, ffn=32, layers=1, vocab=vocab
    )
    tensors = llama_tensors(tiny.weights(sizes))
    path.write_bytes(gguf_bytes(llama_keys(sizes) | keys, tensors))
    return llama_cpp.LlamaCpp(path)


@cache
def texts() -> list[str]:
    kinds = [kind for kind in KINDS if kind not in ("long", "random bytes")]
    made = [text for kind in kinds for text in strings(kind, 11, 40)]
    encodable = [text.encode(errors="replace").decode() for text in made]
    return [
        *encodable,
        "",
        "don't I'LL",
        "a  1  22 333 4444 (5)...",
        "x\n\n  y \t z",
        "$1+2=3 `~|^",
        "e\u0301",  # which the normalization form C changes
        "Attention, attention",  # a token without a merge
    ]


def test_all_names_of_llama_cpp_are_loaded_or_rejected():
    assert set(PRE_TOKENIZERS) == LOADED
    assert not LOADED & REJECTED
    for name in sorted(REJECTED):
        with pytest.raises(TokenizerError) as caught:
            gguf_tokenizer(PATH, keys_of(name))
        line = str(caught.value)
        assert line.startswith("a.gguf: key 'tokenizer.ggml.pre': expected one of ")
        assert (
            f", got '{name}'; load the Hugging Face directory of the model, or, if it"
            in line
        )


@pytest.mark.oracle
@pytest.mark.parametrize("pre", [None, *sorted(LOADED)])
def test_each_loaded_name_gives_the_ids_of_llama_cpp(tmp_path, pre):
    llama_cpp.needed()
    keys = keys_of(pre)
    if pre is None:
        with pytest.warns(UserWarning, match="'tokenizer.ggml.pre' is missing"):
            ours = tokenizer_of(keys)
    else:
        ours = tokenizer_of(keys)
    with llama_cpp_of(tmp_path / "a.gguf", keys) as theirs:
        assert (ours.bos_id, ours.eos_id, ours.adds_bos) == theirs.special_ids
        for text in texts():
            composed = ours._encoder.normalize(text)  # llama.cpp composes no text
            assert (composed == text) or pre in COMPOSING
            assert ours.encode(text, bos=False, eos=False) == theirs.tokenize(composed), (
                ascii(text)
            )


@pytest.mark.oracle
@pytest.mark.parametrize("pre", ["llama-bpe", "smaug-bpe", None])
@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre. is missing")
def test_the_begin_token_is_added_as_the_file_says(tmp_path, pre, adds_bos):
    llama_cpp.needed()
    keys = keys_of(pre, add_bos_token=adds_bos)
    with llama_cpp_of(tmp_path / "a.gguf", keys) as theirs:
        assert theirs.special_ids[-1] is adds_bos
    assert tokenizer_of(keys).adds_bos is adds_bos


def test_each_pattern_gives_ids_of_its_own():
    """Names of different patterns differ, so that the comparison finds a name in a wrong
    group.
    """
    groups = {pre: name for name, pre in PRE_TOKENIZERS.items()}
    assert len(groups) == 9
    ids = set()
    for name in groups.values():
        tokenizer = tokenizer_of(keys_of(name))
        ids.add(str([tokenizer.encode(text, bos=False, eos=False) for text in texts()]))
    assert len(ids) == len(groups)


def test_the_default_pattern_cuts_punctuation_words_and_three_digits():
    text = "It's 12345 $x+y=..z  (a)\n\n b"
    (pieces,) = LLAMA_CPP_DEFAULT.split(text)
    assert pieces == [
        "It",
        "'",
        "s",
        " ",
        "123",
        "45",
        " ",
        "$",
        "x",
        "+",
        "y",
        "=..",
        "z",
        "  ",
        "(",
        "a",
        ")",
        "\n\n",
        " b",
    ]
