"""Load a LoRA adapter for a model.

The matrices B get the order of rows that the model's weights have, because the rows of
wq and wk differ between the formats (`checkpoint/names.py`). A matrix that the adapter
stores for several weights, such as `qkv_proj`, is divided: the weights share A, and each
has its rows of B.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .. import ml
from ..checkpoint.adapters import AdapterBase, AdapterFile, read_adapter
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.names import EMBEDDINGS, OUTPUT
from ..checkpoint.safetensors_writer import reordered
from ..ml.errors import declared_lack_of_memory
from ..untrusted import label_of
from .args import ModelArgs
from .errors import NotEnoughMemoryError
from .families import FAMILIES
from .loader import Model
from .ranks import RankedNetwork
from .sources import Source


@dataclass(frozen=True, eq=False)
class LoadedAdapter(ml.Adapter):
    """An adapter that `load_adapter` has read, for one model.

    Attributes:
        path: The directory or file.
        kind: The format: "peft", "mlx" or "llama.cpp".
        ranks: The ranks of the matrices, in ascending order.
        args: The sizes and constants of the model.
    """

    path: Path
    kind: str
    ranks: tuple[int, ...]
    args: ModelArgs = field(repr=False)

    @property
    def nbytes(self) -> int:
        """The size of the matrices in bytes."""
        pairs = (*self.products.values(), *self.lookups.values())
        matrices = {id(x): x for pair in pairs for x in (pair.a, pair.b)}
        return sum(matrix.nbytes for matrix in matrices.values())

    @property
    def description(self) -> str:
        """A one-line summary for the user."""
        ranks = ", ".join(map(str, self.ranks))
        word = "rank" if len(self.ranks) == 1 else "ranks"
        changed = {*self.products, *self.lookups}
        return f"{self.name} ({self.kind}, {word} {ranks}, {len(changed)} weights)"


@declared_lack_of_memory("load_adapter", NotEnoughMemoryError)
def load_adapter(
    model: Model, path: str | Path, name: str | None = None
) -> LoadedAdapter:
    """Load a LoRA adapter for a model, which does not change.

    A request uses the adapter with `Request.adapters`. A pass without an engine uses it
    inside `with ml.adapted_rows([(tokens, wanted, ((adapter, 1.0),))])`. If several
    processes run the model, each of them loads the same adapters in the same order.

    Args:
        model: The model.
        path: A directory in the format of peft or mlx, or a GGUF file of llama.cpp.
        name: The name of the adapter for messages. The default is the name of the
            directory, or of the file without its suffix.

    Raises:
        CheckpointError: The adapter is damaged, unsupported, or made for another model.
        NotEnoughMemoryError: Memory for the matrices cannot be allocated.
    """
    path = Path(path)
    transformer = model.transformer
    own = transformer.own if isinstance(transformer, RankedNetwork) else None
    args = model.args if own is None else own.args
    file, products, lookups = read_changes(path, model.source, model.checkpoint, args)
    if own is not None:
        products, lookups = own.changes(products, lookups)
    if name is None:
        resolved = path.resolve()
        name = label_of(Path(resolved.name if resolved.is_dir() else resolved.stem))
    adapter = LoadedAdapter(
        name=name,
        products=products,
        lookups=lookups,
        path=path,
        kind=file.kind,
        ranks=file.ranks,
        args=model.args,
    )
    if isinstance(transformer, RankedNetwork):
        transformer.adapters.append(adapter)
    return adapter


def read_changes(
    path: Path, source: Source, checkpoint: Checkpoint, args: ModelArgs
) -> tuple[AdapterFile, dict[str, ml.LowRankPair], dict[str, ml.LowRankPair]]:
    """Read an adapter; return it, and its changes of products and of lookups.

    Args:
        path: See `load_adapter`.
        source: The base model.
        checkpoint: The base model's weights.
        args: The base model's sizes and constants.

    Raises:
        CheckpointError: See `load_adapter`.
    """
    family = FAMILIES[source.model_type]
    base = AdapterBase(
        rows=args.tensor_rows,
        sizes=args.tensor_sizes,
        architecture=family.gguf.architecture,
        has_output=OUTPUT in checkpoint.dtypes,
    )
    file = read_adapter(path, base)
    order = family.gguf.rope_pairs if file.kind == "llama.cpp" else "halves"
    products, lookups = _changes(file, args, is_reordered=order != args.rope_pairs)
    if OUTPUT in products and not base.has_output:
        # A tied output matrix is the embedding table, and has its name.
        products[EMBEDDINGS] = products[OUTPUT]
    return file, products, lookups


def _changes(
    file: AdapterFile, args: ModelArgs, is_reordered: bool
) -> tuple[dict[str, ml.LowRankPair], dict[str, ml.LowRankPair]]:
    """Return the changes of products and of lookups, by the names of the weights."""
    products: dict[str, ml.LowRankPair] = {}
    lookups: dict[str, ml.LowRankPair] = {}
    rotated = args.rotated_weights if is_reordered else ()
    rows = {row.name: row for row in args.tensor_rows}
    for first, stored in file.pairs.items():
        if first == EMBEDDINGS:
            table = stored.a.transpose(0, 1).contiguous()
            lookups[first] = ml.LowRankPair(table, stored.b, stored.scale)
            continue
        for name in args.stored_parts("hugging_face")[first]:
            b = stored.b
            if rows[name].joined:
                b = b.slice(*rows[name].rows_in(args.tensor_sizes))
            if name.removesuffix(".weight") in rotated:
                b = reordered(b, args.head_dim, args.rope_pairs)
            products[name] = ml.LowRankPair(stored.a, b, stored.scale)
    return products, lookups
