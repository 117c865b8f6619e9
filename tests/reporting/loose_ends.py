"""What no page may have: dead links, ids that are there twice, unfilled placeholders."""

from __future__ import annotations

import re


def loose_ends(html: str) -> list[str]:
    """Links and labels that lead nowhere, ids that are there twice, and placeholders that nothing filled."""
    plain = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
    ids = re.findall(r'\sid="([^"]*)"', plain)
    pointed = re.findall(r'href="#([^"]*)"', plain)
    pointed += [name for names in re.findall(r'aria-labelledby="([^"]*)"', plain) for name in names.split()]
    pointed += re.findall(r'data-filters="([^"]*)"', plain)
    found = [f"dead: {name}" for name in pointed if name not in ids]
    found += [f"twice: {name}" for name in {name for name in ids if ids.count(name) > 1}]
    text = re.sub(r"<[^>]*>", " ", plain)
    return (
        found
        + re.findall(r"\{\{.*?\}\}|\{%.*?%\}|(?<![_^])\{[a-z0-9_.-]+\}", text)
        + re.findall(r"\bUndefined\b", text)
    )
