"""Claims of papers, checks of mechanisms, accountants against enclosures: everything that ends in a verdict."""
