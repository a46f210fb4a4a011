"""The pages that are published: executed by papermill, rendered by Quarto or by nbconvert."""
