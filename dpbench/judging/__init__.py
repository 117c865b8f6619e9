"""Claims of papers, checks of mechanisms, accountants held against enclosures: all that ends in a verdict."""
