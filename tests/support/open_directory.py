"""Open the weights of a model directory with the sizes that its configuration says."""

from pathlib import Path

from src.checkpoint import Checkpoint, read_params
from src.checkpoint.checkpoint import open_hugging_face_checkpoint, open_meta_checkpoint
from src.checkpoint.hugging_face_config import read_hugging_face_config
from src.checkpoint.model_directory import ModelDirectory
from src.model.args import args_from_config, args_from_params


def open_hugging_face(directory: Path) -> Checkpoint:
    """Open a directory in Hugging Face's layout, whether or not its weights are there."""
    config = read_hugging_face_config(directory)
    args = args_from_config(config)
    return open_hugging_face_checkpoint(
        ModelDirectory("Hugging Face", directory),
        args.n_layers,
        args.tensor_sizes,
        parts=args.parts,
        tied=config.given.get("tie_word_embeddings") is True,
        quantization=config.quantization.kind if config.quantization else None,
    )


def open_meta(directory: Path, one_by_one: bool = False) -> Checkpoint:
    """Open a directory in Meta's layout, whether or not its weights are there."""
    args = args_from_params(read_params(directory / "params.json"))
    found = ModelDirectory("Meta", directory)
    return open_meta_checkpoint(found, args.n_layers, args.tensor_sizes, one_by_one)
