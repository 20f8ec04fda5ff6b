"""Cells as a PyTorch user types them: each works, or one line names the right call."""

import ast
import math

import pytest

from src import ml
from src.inference import InferenceEngine  # noqa: F401 (hints name it)
from src.model import InferenceContext, load_model

PROMPT = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    "What is the capital of Massachusetts? Answer in one word.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
model = load_model()
tokenizer = model.tokenizer
layer = model.transformer.layers[0]


def names() -> dict[str, object]:
    """Return the names that the cells use: a session after its first cells."""
    ids = tokenizer.encode_prompt(PROMPT)
    table = model.tensors["tok_embeddings.weight"]
    x = ml.get_rows(table, ml.tensor(ids))
    return {
        "ml": ml, "math": math, "model": model, "tokenizer": tokenizer, "layer": layer,
        "ids": ids, "table": table, "x": x, "T": len(ids), "prompt": PROMPT,
        "norm": model.transformer.norm, "scores": ml.randn(6, 27, 27),
        "q": ml.randn(27, 6, 32), "wq": layer.attention.wq,
        "mask": ml.triu(ml.full((27, 27), -math.inf), 1),
        "logits": ml.randn(4096, generator=ml.Generator(1)),
        "InferenceContext": InferenceContext,
    }  # fmt: skip


# A cell, and the value of its last line as a text.
WORKS = {
    # text and ids
    "len(tokenizer.encode_prompt(prompt))": "27",
    "tokenizer.encode('Hi') == tokenizer.encode('Hi', bos=False, eos=False)": "True",
    "tokenizer.decode(ml.tensor(ids)) == prompt": "True",
    "tokenizer.decode([ml.tensor(ids)[-1]])": "'\\n'",
    "[tokenizer.decode([i]) for i in ids][-2:]": "['\\n', '\\n']",
    "ml.tensor(ids).dtype": "int64",
    # embedding
    "table[ml.tensor(ids)].shape": "(27, 192)",
    "table[ids].shape": "(27, 192)",
    "ml.get_rows(table, ml.tensor(ids)).shape": "(27, 192)",
    "(table[ids] == x).all().item()": "True",
    "x[None].shape": "(1, 27, 192)",
    "x[..., None].shape": "(27, 192, 1)",
    "x[:, [1, 2]].shape": "(27, 2)",
    "x[x[:, 0] > 0].dim()": "2",
    "x[-1].shape": "(192,)",
    "x[[0, -1]].size()": "(2, 192)",
    "x.size(0), x.size(-1), x.size()": "(27, 192, (27, 192))",
    "x.dim(), x.ndim, x.numel()": "(2, 2, 5184)",
    "x.float().dtype, x.half().dtype, x.long().dtype": "(float32, float16, int64)",
    "x.view(27, 6, 32).shape": "(27, 6, 32)",
    "x.float().view(-1).shape": "(5184,)",
    # numbers
    "f'{x.float().mean():.3f}'": "'0.004'",
    "f'{x[0, 0]:.2f}'": "'0.45'",
    "'%.1f' % ml.tensor(0.25)": "'0.2'",
    "round(float(x.float().std()), 2)": "0.23",
    "x.float().norm().shape, x.norm(dim=-1).shape": "((), (27,))",
    "x.float().norm(dim=-1, keepdim=True).shape": "(27, 1)",
    "x.float().var(-1, correction=0).shape": "(27,)",
    "list(range(ml.tensor(3)))": "[0, 1, 2]",
    "'abcd'[ml.tensor(2)]": "'c'",
    "int(logits.argmax())": "732",
    "logits.argmax().item()": "732",
    # norm and layers
    "(x.float() / (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).shape": "(27, 192)",
    "(x.float() * ml.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).dtype": "float32",
    "norm(x.float()).dtype": "bfloat16",
    "layer(x.float()).shape": "(27, 192)",
    "layer.attention(norm(x.float())).shape": "(27, 192)",
    "layer.feed_forward(norm(x.float())).shape": "(27, 192)",
    "model(ids).shape": "(1, 4096)",
    "model(ids, all_positions=True).shape": "(27, 4096)",
    "model.transformer(ml.tensor(ids)).shape": "(1, 4096)",
    "tokenizer.decode([model(ids)[0].argmax()])": "'Boston'",
    "str(model).count('LlamaTransformerBlock')": "1",
    "'(wk): [64, 192] bfloat16' in repr(layer.attention)": "True",
    # attention
    "(x @ wq.T).shape": "(27, 192)",
    "(x.float() @ wq.T).dtype": "float32",
    "q.transpose(0, 1).shape, q.permute(1, 0, 2).shape": "((6, 27, 32), (6, 27, 32))",
    "(q.transpose(0, 1) @ q.transpose(0, 1).transpose(-1, -2)).shape": "(6, 27, 27)",
    "ml.matmul(q.transpose(0, 1), q.transpose(0, 1).transpose(1, 2)).shape": "(6, 27, 27)",
    "ml.repeat_interleave(q[:, :2], 3, dim=1).shape": "(27, 6, 32)",
    "q.repeat_interleave(2, dim=1).shape": "(27, 12, 32)",
    "(scores + mask).softmax(-1)[0, 0, 1].item()": "0.0",
    "scores.masked_fill(mask < 0, -math.inf).softmax(dim=-1)[0, 0, 1].item()": "0.0",
    "scores.masked_fill(ml.ones(27, 27).triu(1).bool(), -math.inf)[0, 0, 1].item()": "-inf",
    "ml.softmax(scores / math.sqrt(32), dim=-1).sum(-1).shape": "(6, 27)",
    "ml.any(mask > 0).item(), (mask <= 0).all().item()": "(False, True)",
    "(mask == 0).sum().item()": "378",
    "(mask[0] == 0).long().tolist()[:3]": "[1, 0, 0]",
    # RoPE
    "(1 / 500000 ** (ml.arange(0, 32, 2).float() / 32)).shape": "(16,)",
    "ml.outer(ml.arange(27).float(), ml.linspace(0, 1, 16)).cos().shape": "(27, 16)",
    "ml.cat([ml.cos(q), ml.sin(q)], dim=-1).shape": "(27, 6, 64)",
    "ml.cat((-q[..., 16:], q[..., :16]), dim=-1).shape": "(27, 6, 32)",
    "ml.stack([q[..., ::2], q[..., 1::2]], dim=-1).flatten(-2).shape": "(27, 6, 32)",
    "q[..., 0::2].shape": "(27, 6, 16)",
    "ml.polar(ml.ones(27, 16), ml.ones(27, 16)).dtype": "complex64",
    # sampling
    "ml.multinomial(logits.softmax(-1), 1, generator=ml.Generator(1)).shape": "(1,)",
    "logits.topk(5)[0].shape": "(5,)",
    "ml.sort(logits.softmax(-1), descending=True)[0].cumsum(-1)[-1:].shape": "(1,)",
    "logits.argsort(descending=True)[0].item()": "732",
    "(logits.softmax(-1).cumsum(0) <= 0.9).sum().item() > 0": "True",
    "ml.cross_entropy(ml.zeros(2, 4), ml.tensor([1, 2]))": "Tensor(1.3862944, shape=[], dtype=float32)",
    "ml.where(logits > 0, logits, -math.inf).max().item() > 0": "True",
    "((logits > 0) & ~(logits > 1)).any().item()": "True",
    # quantization
    "ml.quantize(wq, 'nf4')": "QuantizedTensor('layers.0.attention.wq.weight', [192, 192], nf4)",
    "ml.quantize(wq, 'nf4').dequantize('bfloat16').dtype": "bfloat16",
    "ml.linear_transformation(x, ml.quantize(wq, 'int8_block'), dtype='float32').dtype": "float32",
    "ml.zeros(3, dtype='bfloat16').to('float32').dtype": "float32",
    "ml.KeyValueCache(8, 2, 4, 'float32').dtype": "float32",
}  # fmt: skip
# A cell, and a part of the one line that it fails with.
FAILS = {
    "tokenizer.decode(5)": "[decode] ids must be a sequence of ids: got int",
    "tokenizer.decode([0.5])": "[decode] an id must be an integer: got float",
    "tokenizer.encode(prompt, add_special_tokens=False)": "add_special_tokens",
    "tokenizer.encode_prompt(ids)": "[encode_prompt] text must be str: got list",
    "table[ml.tensor([0.5])]": "dtype of an index must be int32, int64 or bool: float32",
    "table[5000]": "index must be in [-4096, 4096): 5000",
    "table[[5000]]": "index must be in [-4096, 4096): 5000",
    "x[x > 0, 0]": "number of indices must be <= ndim",
    "x[0:500]": "0 <= start <= stop <= size must hold",
    "x.T.view(-1)": "use reshape",
    "x.t()": "use x.T",
    "x.cuda()": "tensors are in the memory of the processor",
    "x.detach()": "there are no gradients here",
    "x.add_(1)": "use x = x + y",
    "x.clamp(0)": "use x.clip(min, max)",
    "x.clone()": "use x.copy()",
    "x.unbind()": "use list(x)",
    "x.repeat(2, 1)": "x.repeat_interleave(n, dim)",
    "x.nonexistent": "'Tensor' object has no attribute 'nonexistent'",
    "ml.einsum('ij,kj->ik', x, wq)": "use ml.matmul with transpose or permute",
    "ml.nn.functional.softmax(x)": "use functions of ml, such as ml.softmax",
    "ml.bmm(scores, scores)": "use ml.matmul(a, b)",
    "ml.manual_seed(1)": "use generator=ml.Generator(seed)",
    "ml.no_grad()": "there are no gradients here",
    "ml.from_numpy(x)": "use ml.Tensor.from_numpy(array)",
    "x.float() + x": "a.dtype must equal b.dtype: float32 != bfloat16",
    "x.float() + mask": "sizes must be equal or 1, aligned at the right",
    "x // 2": "use (a / b).to('int32')",
    "f'{x:.3f}'": "[format] ndim must equal 0: 2",
    "range(ml.tensor(2.0))": "[index] dtype must be an integer: float32",
    "if_true = 1 if x > 0 else 2": "[bool] number of elements must equal 1: 5184",
    "table[0, 0] = 1.0": "the storage must be writable",
    "ml.quantize(wq, 'nf4').T": "ml.linear_transformation(x, weight) is x @ weight.T",
    "x @ ml.quantize(wq, 'nf4')": "dequantize() gives a plain tensor",
    "ml.quantize(wq, 'nf4')[ids]": "dequantize() gives a plain tensor",
    "ml.quantize(wq, 'nf5')": "dtype must be one of nf4, int8_block, q4_0, q8_0: 'nf5'",
    "model.generate(ids)": "InferenceEngine(model, sequence_length=512).generate(ids)",
    "model.config": "model.args has the sizes and constants",
    "model('Hello')": "tokens must be whole numbers of shape [T]: got str",
    "model([ids])": "tokens must be whole numbers of shape [T]: got int64 [1, 27]",
    "norm(ids)": "x must be a Tensor: list",
    "layer(ids)": "x must be a Tensor: list",
    "model.transformer.parameters()": "model.tensors has the weights by name",
    "layer.eval()": "models have no training mode",
    "layer.nonexistent": "'LlamaTransformerBlock' object has no attribute 'nonexistent'",
    "tokenizer.apply_chat_template([])": "encode_chat(tokenizer, messages)",
    "tokenizer.eos_token_id": "tokenizer.eos_id",
    "tokenizer.nonexistent": "'Tokenizer' object has no attribute 'nonexistent'",
}


def value_of(cell: str) -> object:
    """Run a cell, and return the value of its last line if it has one."""
    tree = ast.parse(cell)
    last = tree.body[-1]
    space = names()
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), space)
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), space)


@pytest.mark.parametrize("cell", WORKS)
def test_a_cell_works(cell):
    assert repr(value_of(cell)) == WORKS[cell]


@pytest.mark.parametrize("cell", FAILS)
def test_a_cell_fails_with_one_line_that_names_the_rule_or_the_right_call(cell):
    with pytest.raises((ml.LlamaBoltsError, AttributeError, TypeError)) as caught:
        value_of(cell)
    assert FAILS[cell] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_with_names_of_special_tokens_is_plain_text_unless_it_is_a_prompt():
    assert len(tokenizer.encode(PROMPT)) == 89
    assert "encode_prompt" in tokenizer.encode.__doc__


def test_parts_of_a_network_can_be_called_one_by_one_with_the_bits_of_the_whole():
    ids = tokenizer.encode_prompt(PROMPT)
    x = model.transformer.embed(ml.tensor(ids))
    for each in model.transformer.layers:
        x = each(x)
    logits = model.transformer.logits(model.transformer.norm(x[-1:].contiguous()))
    assert (logits == model(ids)).all()


def test_layers_with_a_context_continue_a_sequence():
    ids = tokenizer.encode_prompt(PROMPT)
    context = InferenceContext(model.args, 27)
    parts = []
    for start, stop in ((0, 20), (20, 27)):
        x = model.transformer.embed(ml.tensor(ids[start:stop]))
        for each in model.transformer.layers:
            x = each(x, context, start)
        parts.append(x)
    whole = model.transformer.embed(ml.tensor(ids))
    for each in model.transformer.layers:
        whole = each(whole)
    assert (ml.cat(parts) == whole).all()
    assert context.length == 27
