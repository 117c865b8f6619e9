"""What runs leave behind: records, their keys, and the code that made them."""
