"""What a reader sees in a notebook: views, charts, tables and the article."""
