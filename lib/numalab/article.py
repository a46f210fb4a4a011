"""The name under which the article's notebook imports what is in ``numalab.show.article``."""

from numalab.show.article import open_article

__all__ = ["open_article"]
