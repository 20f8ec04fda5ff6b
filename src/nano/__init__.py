"""The bundled model in Meta's layout; `tools/nano` contains its training code."""
