"""White space beside a special token that takes it, in prompts that templates write."""

import json
from pathlib import Path

import pytest

from src.inference import ChatTemplate, Message, encode_chat
from src.tokenizer import load_tokenizer

pytestmark = pytest.mark.oracle
tokenizers = pytest.importorskip("tokenizers", reason="needs the oracle extra")
transformers = pytest.importorskip("transformers", reason="needs the oracle extra")

# The tokens of Phi-3 take the white space to their right; that of BART takes it to its
# left.
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\n' + "
    "message['content'] + ' <mask> x <|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    made.train_from_iterator(["hello world, the quick brown fox"] * 10, trainer)
    takes_right = {"rstrip": True, "normalized": False, "special": True}
    made.add_special_tokens(
        [
            *(
                tokenizers.AddedToken(name, **takes_right)
                for name in ("<|user|>", "<|assistant|>", "<|end|>")
            ),
            tokenizers.AddedToken("<mask>", lstrip=True, normalized=False, special=True),
        ]
    )
    made.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("content", ["hello", "  hello \n", "", "\n\n x  "])
def test_special_tokens_take_the_white_space_that_they_take_in_transformers(
    tmp_path, content
):
    write_tokenizer(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json")
    ).apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=TEMPLATE,
        add_generation_prompt=True,
        return_dict=False,
    )
    ours = encode_chat(
        load_tokenizer(tmp_path),
        [Message("user", content)],
        chat_format=ChatTemplate(TEMPLATE),
    )
    assert ours == list(theirs)
