"""From events to guarantees: composition, accountants, calibration, and statements of an answer."""
