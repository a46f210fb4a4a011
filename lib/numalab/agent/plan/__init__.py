"""The plan of a run: its cells, their bindings, their order and their price."""
