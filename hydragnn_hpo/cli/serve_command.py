"""``hydragnn-hpo serve``: an ensemble as an HTTP service."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import (
    DeviceOption,
    DryRunOption,
    EnsembleArgument,
    TrustOption,
    ensemble_file,
)
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.log import configure

if TYPE_CHECKING:
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.ensemble.serve import Limits
    from hydragnn_hpo.http_service import Token

HostOption = Annotated[str, typer.Option(help="Address; loopback unless told.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(help="File (mode 0600) with the token; else HYDRAGNN_HPO_TOKEN, else made."),
]
LargestOption = Annotated[float, typer.Option(min=0.001, max=1e5, help="Largest body, MB.")]
StructuresOption = Annotated[int, typer.Option(min=1, help="Most structures in a request.")]
AtomsOption = Annotated[int, typer.Option(min=1, help="Most atoms in a structure.")]
SecondsOption = Annotated[float, typer.Option(min=1.0, max=86_400.0, help="Time for a request.")]
WaitingOption = Annotated[int, typer.Option(min=1, help="Most requests at a time.")]


def serve(
    ensemble: EnsembleArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    token_file: TokenFileOption = None,
    device: DeviceOption = "auto",
    max_mb: LargestOption = 8.0,
    max_structures: StructuresOption = 1000,
    max_atoms: AtomsOption = 2000,
    seconds: SecondsOption = 60.0,
    waiting: WaitingOption = 32,
    trust: TrustOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Serve predictions over HTTP, to those who have the token, until stopped."""
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.ensemble.engine import device_of
    from hydragnn_hpo.ensemble.serve import Limits
    from hydragnn_hpo.http_service import find_token, is_loopback

    token = find_token(token_file, os.environ)
    _check_reach(host, made=token.made, loopback=is_loopback(host))
    size = round(max_mb * 1e6)
    limits = Limits(size, max_structures, max_atoms, seconds=seconds, waiting=waiting)
    path = ensemble_file(ensemble)
    model = Ensemble.load(path, device=device_of(device), trust=trust or ())
    heads = ", ".join(f"{name} [{unit}]" for name, unit in model.manifest.units().items())
    if dry_run:
        typer.echo(f"would serve {heads} of {path} on {_url(host, port)}")
        return
    _run(model, token, limits, (host, port), heads)


def _run(
    model: "Ensemble", token: "Token", limits: "Limits", address: tuple[str, int], heads: str
) -> None:
    """Listen, say where, and serve until stopped."""
    from hydragnn_hpo.ensemble.serve import make_app
    from hydragnn_hpo.http_service import listen, serve_on

    configure()
    with listen(*address) as opened:
        if token.made:
            typer.echo(f"token (shown once): {token.text}", err=True)
        typer.echo(f"serving {heads} on {_url(address[0], opened.getsockname()[1])}")
        serve_on(opened, make_app(model, token, limits), grace=limits.seconds)
    typer.echo("stopped")


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _check_reach(host: str, *, made: bool, loopback: bool) -> None:
    """Refuse an address that others reach without a token of the user's; warn about TLS."""
    if loopback:
        return
    if made:
        raise ConfigError(
            f"others can reach {host}: choose a token, with --token-file or HYDRAGNN_HPO_TOKEN."
        )
    typer.echo(
        f"warning: token and structures travel in clear text to {host}; put a proxy with TLS "
        "in front, or use an SSH tunnel.",
        err=True,
    )
