"""The pictures and numbers of docs/notebooks and docs/fp8-notes.md.

Each module answers a question, with functions that compute, functions that draw, and a class whose controls a notebook
shows. FP8 is ``octile.numpy``'s, with the bits of the kernels; times are those of docs/records, and verdicts those of
``octile shapes``. ``pip install '.[notebooks]'`` brings matplotlib and ipywidgets, which are imported when they are
used.
"""
