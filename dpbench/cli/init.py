"""`dpbench init`: the specs that come with dpbench, laid out to be edited."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", default="specs", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="Only these, such as quickstart or bu2020. Repeatable.")
def init(folder: Path, only: tuple[str, ...]) -> int:
    """Copy the specs that come with dpbench into FOLDER (default: specs), to be edited; nothing is overwritten.

    Without --only all are copied: quickstart (a small run of every mechanism), reduced (short schedules for a CPU), and
    the tables and figures of papers. A file that is there already stays as it is. They run without a copy, too:
    `dpbench run quickstart`.

    \b
    Examples:
      dpbench init
      dpbench init mine --only quickstart --only bu2020/table1
    """
    from dpbench.atomic import write_bytes
    from dpbench.catalog import suggestion
    from dpbench.errors import DpbenchError
    from dpbench.spec.shipped import groups, shipped, shipped_folder

    known = shipped()
    for name in only:
        if name not in known:
            meant = suggestion(name, known if "/" in name else groups())
            raise DpbenchError(f"--only {name}: no spec of that name comes with dpbench{meant}")
    if folder.exists() and not folder.is_dir():
        raise DpbenchError(f"{folder} is no folder: name another one, as in `dpbench init mine`")
    chosen = [known[name] for name in only or groups()]
    files = [file for path in chosen for file in (sorted(path.rglob("*.yaml")) if path.is_dir() else [path])]
    targets = {folder / file.relative_to(shipped_folder()): file for file in files}
    new = [target for target in targets if not (target.exists() or target.is_symlink())]
    for target in new:
        write_bytes(target, targets[target].read_bytes())
    for target, file in targets.items():
        if not target.is_file() or target.read_bytes() != file.read_bytes():
            click.echo(f"kept {target}, which differs from what comes with dpbench")
    example = folder / (chosen[0] if only else known["quickstart"]).relative_to(shipped_folder())
    there = "" if new else " (all are there)"
    click.echo(
        f"{len(new)} of {len(targets)} files written to {folder}{there}; now, for example: dpbench plan {example}"
    )
    return 0
