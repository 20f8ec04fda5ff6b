"""`--check-weights`: every byte of the weights against the checksums of their files."""

from ..checkpoint.torch_pth import check_crcs
from ..memory import readable_bytes
from ..model import open_checkpoint, read_model_files
from .arguments import Options
from .console import Console
from .errors import UsageError
from .progress import checking_progress

_ZIP = b"PK\x03\x04"


def check_weights(options: Options, console: Console) -> None:
    """Write a line for each file of the model whose bytes agree with its checksums.

    Raises:
        UsageError: A file holds no checksums, so that nothing can be said of it.
        ModelError, CheckpointError: A checksum differs, or the files cannot be used.
    """
    checkpoint = open_checkpoint(read_model_files(options.model), one_by_one=True)
    try:
        for file in checkpoint.mapped:
            is_zip = file.buffer[: len(_ZIP)] == _ZIP
            unchecked = check_crcs(file, checking_progress(console)) if is_zip else file.size
            if unchecked:
                raise UsageError(
                    f"{file.label}: --check-weights: expected a CRC-32 of every record, "
                    f"got {unchecked} bytes without one (safetensors files have none)"
                )
            console.report_line(
                f"{file.label}: {readable_bytes(file.size)} agree with their CRC-32"
            )
    finally:
        console.clear_progress()
        checkpoint.close()
