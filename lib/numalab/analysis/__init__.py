"""What the numbers of a run say: evidence, the judge, claims, recommendation, comparison."""

from . import words as words  # so that every reason of this room has its sentence
