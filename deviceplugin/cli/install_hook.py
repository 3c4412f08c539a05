"""`topogpu-device-plugin install-hook`."""

import os
from pathlib import Path

import click

from deviceplugin.container import hook_install


@click.command("install-hook", context_settings={"show_default": True})
@click.option(
    "--from",
    "source",
    required=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Holds libvgpu.so, and license and vgpuvalidator where the build has them.",
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
    default=hook_install.KEPT_LIBRARIES,
    type=click.IntRange(0),
    help="How many earlier libraries stay, for containers that restart with the one they started with.",
)
def install_hook(source: Path, hook_path: Path, keep: int) -> None:
    """Install HAMi-core below the hook path, or bring it up to date.

    Safe while containers run: a file in use is never written to, and what changes is switched by rename. A second
    run with the same files changes nothing.
    """
    if not hook_path.is_absolute():
        raise click.UsageError(f"--hook-path {hook_path}: containers need an absolute path.")
    try:
        done = hook_install.install_hook(source, hook_path, machine=os.uname().machine, keep=keep)
    except hook_install.CannotInstall as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{done.library} is {'installed' if done.changed else 'already installed'}.")
    for name in done.removed:
        click.echo(f"Removed {name}.")
