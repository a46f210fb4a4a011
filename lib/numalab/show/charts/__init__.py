"""Charts and tables for notebooks and the article: data in, a matplotlib figure or Markdown out.

No function here reads a file. The modules import matplotlib and polars, so import the one you
need: ``from numalab.show.charts import bindings``.
"""
