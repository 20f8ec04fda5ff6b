"""Run transformers for `--verify` in a separate process.

The engine never imports this module. `python -m src.cli.reference FOLDER` reads
`request.json` and `ours.npz` from the folder and writes `theirs.npz` and `reply.json`.
Each step starts from the result of `model/llama.py` for the previous step, so that a
difference is caused by that step alone.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from transformers.masking_utils import eager_mask

from .. import ml
from ..checkpoint.names import rows_of, stored_rows
from ..model import load_model
from ..model.quantization import DequantizedWeights, JoinedWeights
from ..tokenizer.config_files import is_sentencepiece_file
from .reference_encoding import load_encoding

# The name under which a recording version of transformers' eager attention is registered.
_RECORDED = "recorded"
# The trace keys ("stage layer name") for the outputs of a layer's modules. A family has
# norms before or after attention and feed-forward, or both.
_BEFORE = {
    "input_layernorm": "6 {} normed",
    "self_attn.q_norm": "9 {} xq_normed",
    "self_attn.k_norm": "9 {} xk_normed",
    "post_attention_layernorm": "16 {} normed",
}
_AFTER = {
    "self_attn.q_norm": "8 {} xq_normed",
    "self_attn.k_norm": "8 {} xk_normed",
    "post_attention_layernorm": "15 {} normed",
    "post_feedforward_layernorm": "18 {} normed",
}
_QUERIES_AND_KEYS = ("self_attn.q_norm", "self_attn.k_norm")
_BEFORE_AND_AFTER = _BEFORE | {
    "post_attention_layernorm": "15 {} normed",
    "pre_feedforward_layernorm": "16 {} normed",
    "post_feedforward_layernorm": "18 {} normed",
}
_RETURNED = {
    "self_attn.q_proj": "8 {} xq",
    "self_attn.k_proj": "8 {} xk",
    "self_attn.v_proj": "8 {} xv",
    "self_attn.o_proj": "14 {} attention",
    "mlp.gate_proj": "17 {} gate",
    "mlp.up_proj": "17 {} up",
    "mlp.down_proj": "17 {} feed_forward",
    "": "18 {} x",
}


def build_llama(config: Any, weights: dict[str, Any]) -> Any:
    """Return a transformers model with the given weights, which are not copied."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    model.tie_weights()
    # The rotary frequencies and the factor of the embeddings are not in any file, so they
    # are still on the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    embeddings = model.model.embed_tokens
    if _is_scaled(embeddings):
        embeddings.embed_scale = torch.tensor(embeddings.scalar_embed_scale)
    return model.eval()


def _is_scaled(embeddings: Any) -> bool:
    """Return whether a module for embeddings multiplies the rows by a factor."""
    return hasattr(embeddings, "embed_scale")


def meta_weights(directory: Path, config: Any) -> dict[str, Any]:
    """Return the mapped weights of Meta's files by their Hugging Face names.

    Shards are joined along the dimension that is too short. The rows of q and k are
    reordered, because Meta rotates adjacent elements (2j, 2j + 1) and Hugging Face
    rotates elements of both halves (j, j + h/2).
    """
    files = sorted(directory.glob("consolidated.*.pth"))
    shards = [torch.load(file, mmap=True, weights_only=True) for file in files]
    with torch.device("meta"):
        expected = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    weights = {}
    for row in rows_of(config.num_hidden_layers):
        parts = [shard[row.name] for shard in shards if row.name in shard]
        if not parts:
            continue  # the output matrix of a tied model
        shape = expected[row.hugging_face].shape
        short = [d for d, size in enumerate(parts[0].shape) if size != shape[d]]
        weight = torch.cat(parts, short[0]) if short else parts[0]
        if row.name.endswith((".wq.weight", ".wk.weight")):
            heads = weight.view(-1, config.head_dim // 2, 2, weight.shape[1])
            weight = heads.transpose(1, 2).reshape(weight.shape)
        weights[row.hugging_face] = weight
    return weights


def _dequantized_weights(directory: Path) -> dict[str, Any]:
    """Return the weights of a quantized model, dequantized to float32 by `ml`."""
    model = load_model(directory)
    plain = DequantizedWeights(model.tensors, ml.float32)
    stored: Any = JoinedWeights(plain, model.args, "hugging_face")
    rows = stored_rows(model.args.tensor_rows, "hugging_face")
    names = {row.name: name for name, row in rows.items()}
    return {
        names[key]: torch.from_numpy(weight.numpy().astype(np.float32))
        for key, weight in stored.items()
    }


def _read_model(request: dict[str, Any], folder: Path) -> Any:
    """Return the transformers model for a request."""
    directory = Path(request["directory"])
    kind = request["weights"]
    if kind == "directory":
        return transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            use_safetensors=True,
            experts_implementation="eager",  # the others need matrices of some sizes
        ).eval()
    config = transformers.AutoConfig.from_pretrained(
        folder if kind == "tensors" else directory
    )
    config.dtype = torch.float32
    if kind == "tensors":
        weights = meta_weights(directory, config)
    else:
        del config.quantization_config
        weights = _dequantized_weights(directory)
    return build_llama(config, {name: weight.float() for name, weight in weights.items()})


def _record(model: Any, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model on given intermediate results, and return its own results."""
    theirs: dict[str, Any] = {}

    def exchange(key: str, tensor: Any) -> Any:
        if key not in ours:  # the layer has no RoPE
            return tensor
        theirs[key] = tensor[0].flatten(1).numpy()
        return torch.from_numpy(ours[key]).reshape(tensor.shape)

    def exchange_first(key: str, output: Any) -> Any:
        if isinstance(output, tuple):  # with the scores of a router
            return exchange(key, output[0]), *output[1:]
        return exchange(key, output)

    def watch(module: Any, key: str) -> None:
        module.register_forward_hook(
            lambda _module, _input, output: exchange_first(key, output)
        )

    def watch_heads(module: Any, key: str) -> None:
        module.register_forward_hook(
            lambda _module, _input, output: exchange(
                key, output.transpose(1, 2)
            ).transpose(1, 2)
        )

    def watch_input(module: Any, key: str) -> None:
        module.register_forward_pre_hook(lambda _module, inputs: exchange(key, inputs[0]))

    def attention(module: Any, query: Any, key: Any, *rest: Any, **more: Any) -> Any:
        layer = module.layer_idx
        by_token = {"xq": query.transpose(1, 2), "xk": key.transpose(1, 2)}
        rotated = (
            exchange(f"10 {layer} {x}", by_token[x]).transpose(1, 2) for x in by_token
        )
        eager = sys.modules[type(module).__module__].eager_attention_forward
        output, weights = eager(module, *rotated, *rest, **more)
        return exchange(f"14 {layer} output", output), weights

    transformers.AttentionInterface.register(_RECORDED, attention)
    transformers.AttentionMaskInterface.register(_RECORDED, eager_mask)
    model.set_attn_implementation(_RECORDED)
    embeddings = model.model.embed_tokens
    watch(embeddings, "4 - scaled" if _is_scaled(embeddings) else "4 - x")
    watch(model.model.norm, "19 - x")
    watch(model.lm_head, "19 - logits")
    for number, layer in enumerate(model.model.layers):
        modules = dict(layer.named_modules())
        if "pre_feedforward_layernorm" in modules:
            norms, residual = _BEFORE_AND_AFTER, "pre_feedforward_layernorm"
        elif "post_feedforward_layernorm" in modules:
            norms, residual = _AFTER, "mlp"
        else:
            norms, residual = _BEFORE, "post_attention_layernorm"
        for name, key in (_RETURNED | norms).items():
            if name in modules:
                # With four norms, queries and keys have the heads before the tokens.
                has_heads_first = norms is _BEFORE_AND_AFTER and name in _QUERIES_AND_KEYS
                record = watch_heads if has_heads_first else watch
                record(modules[name], key.format(number))
        if "mlp.down_proj" in modules:
            watch_input(modules["mlp.down_proj"], f"17 {number} hidden")
        else:
            experts = "mlp" if "mlp" in modules else "block_sparse_moe"
            watch(modules[experts], f"17 {number} feed_forward")
        watch_input(layer.get_submodule(residual), f"15 {number} x")
    return theirs


def _reference_ids(file: Path, texts: list[str]) -> list[list[int]]:
    """Return the token ids of the texts, encoded by the library for the file's format."""
    if file.suffix == ".json":
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    if is_sentencepiece_file(file):
        return sentencepiece.SentencePieceProcessor(model_file=str(file)).encode(texts)
    return load_encoding(file).encode_ordinary_batch(texts)


def main(folder: Path) -> None:
    """Process the request in a folder."""
    request = json.loads((folder / "request.json").read_text("utf-8"))
    file = request["tokenizer"]
    texts = request["texts"]
    reply = {
        "ids": None if file is None else _reference_ids(Path(file), texts),
        "versions": (
            f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
        ),
    }
    torch.set_num_threads(request["threads"])
    model = _read_model(request, folder)
    ids = torch.tensor([request["ids"]])
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0].numpy()
        with np.load(folder / "ours.npz") as ours:
            theirs = _record(model, dict(ours))
        model(ids, use_cache=False)
    np.savez(folder / "theirs.npz", logits=logits, **theirs)
    (folder / "reply.json").write_text(json.dumps(reply), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
