"""What the Rényi accountants `rdp`, `moments`, `rdp_filter` and `rdp_data_dependent` share: moments and conversions."""
