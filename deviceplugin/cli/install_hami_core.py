"""`topogpu-device-plugin install-hami-core`."""

import os
from pathlib import Path

import click

from deviceplugin.container import hami_core_install
from program.commands import WholeNumber


@click.command("install-hami-core", context_settings={"show_default": True})
@click.option(
    "--from",
    "source",
    required=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with libvgpu.so.",
)
@click.option(
    "--hook-path",
    envvar="HOOK_PATH",
    show_envvar=True,
    default="/usr/local",
    type=click.Path(file_okay=False, path_type=Path),
    help="The host's folder to install in; it must have the same path here.",
)
@click.option(
    "--keep",
    default=hami_core_install.KEPT_LIBRARIES,
    type=WholeNumber(0),
    help="How many earlier libraries to keep, for containers that restart with the library they started with.",
)
def install_hami_core(source: Path, hook_path: Path, keep: int) -> None:
    """Install HAMi-core below the hook path, or bring it up to date.

    It is safe while containers run: it never writes to a file in use, and replaces files by rename. A second run with
    the same files changes nothing.
    """
    if not hook_path.is_absolute():
        raise click.UsageError(f"--hook-path {hook_path}: containers need an absolute path.")
    try:
        done = hami_core_install.install_hami_core(source, hook_path, machine=os.uname().machine, keep=keep)
    except hami_core_install.CannotInstall as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{done.library} is {'installed' if done.changed else 'already installed'}.")
    for name in done.removed:
        click.echo(f"Removed {name}.")
