"""Rendering: figures, text forms, templates and exports of the report; nothing here computes a result."""
