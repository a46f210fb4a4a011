"""The pages that are published: the report and its HTML."""
