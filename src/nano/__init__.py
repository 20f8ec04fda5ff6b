"""The bundled model in the layout of Meta; `tools/nano` contains the code that made
it.
"""
