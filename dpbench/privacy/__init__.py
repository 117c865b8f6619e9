"""From events to guarantees: composition, accountants, calibration, and what is said of an answer."""
