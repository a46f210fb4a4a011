"""What the numbers say: statistics, claims, comparisons and recommendations."""
