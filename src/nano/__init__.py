"""The bundled model and its adapter; `tools/nano` contains the code that trained them."""
