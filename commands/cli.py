"""The commands of `ratchet`. Heavy imports are inside the functions, so that `ratchet --help` is fast."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from commands.app import Panel, exit_on_sigterm, interruptible, new_group, project_folder
from commands.data import data
from commands.keys import keys
from commands.models import models
from commands.new import new_project
from commands.search import search
from commands.servers import servers
from commands.settings import settings_commands
from ratchet import __version__
from ratchet.terminal_lines import echo

__all__ = ["main"]

app = new_group("Train, evaluate and register models. A model becomes champion only if the gate passes it.")
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of this run; kept if the run completes. Repeatable."),
]
ServedVersion = Annotated[
    str | None, typer.Option(metavar="VERSION", help="NAME@ALIAS or NAME/VERSION.", show_default="serving.model")
]
IntervalLevel = Annotated[
    float | None, typer.Option(metavar="LEVEL", help="Add prediction intervals or sets of classes: 0.5 to 0.99.")
]
ErrorRate = Annotated[
    float | None, typer.Option(metavar="RATE", help="Leave unsure rows without a class: at most so many errors, 0.02.")
]


def _print_version(show: bool) -> None:
    if show:
        echo(f"ratchet {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; always ends the process."""
    app()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of `ratchet` itself."""


@app.command("weights", rich_help_panel=Panel.TRAINING)
def weights_(
    model: Annotated[
        str, typer.Argument(metavar="NAME", help="A classifier of torchvision, or an address: resnet18, hf://ORG/NAME.")
    ],
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="Mirror: a file, or a folder/ with it.", show_default="torchvision"),
    ] = "",
    sha256: Annotated[
        str, typer.Option(metavar="HEX", help="Expected SHA-256.", show_default="as the file's name says")
    ] = "",
) -> None:
    """Put pretrained weights into data/pretrained: from the caches of torch and the hub, or fetched and checked."""
    exit_on_sigterm()
    with project_folder() as workspace, interruptible("nothing was kept"):
        from commands.weight_files import get

        get(workspace, model, source=source, sha256=sha256)


@app.command(rich_help_panel=Panel.TRAINING)
def preflight() -> None:
    """Try the whole pipeline on a few samples and look for silent bugs. Leaves no files."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # files are closed and removed, as on Ctrl-C
    with project_folder() as workspace, interruptible("nothing was left behind"):
        from commands.preflight import preflight as run_preflight

        raise typer.Exit(run_preflight(workspace))


@app.command(rich_help_panel=Panel.TRAINING)
def train(
    assignments: Assignments = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="VERSION", help="Begin with the weights of a version: NAME@ALIAS or NAME/VERSION."
        ),
    ] = "",
    continue_with_changed_code: Annotated[
        bool,
        typer.Option(
            "--continue-with-changed-code", help="Let an interrupted training go on though its code changed; recorded."
        ),
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Train on each of N folds instead, and print the mean. Nothing is registered."
        ),
    ] = None,
) -> None:
    """Ingest, train, evaluate, export and register in this process. Skip unchanged stages."""
    if folds and continue_with_changed_code:
        raise typer.BadParameter("found both; allowed: one of them", param_hint="--folds, --continue-with-changed-code")
    if folds and start:
        raise typer.BadParameter(
            "found both; allowed: one of them, because the version learned from samples of other folds",
            param_hint="--folds, --from",
        )
    with project_folder() as workspace, interruptible("the same command continues from the last checkpoint"):
        if folds:
            from commands.cross_validate import cross_validate

            exit_on_sigterm()
            cross_validate(workspace, assignments or [], folds)
            return
        from commands.train import train as run_here

        run_here(workspace, assignments or [], start=start, continue_with_changed_code=continue_with_changed_code)


@app.command("lr-find", rich_help_panel=Panel.TRAINING)
def lr_find(
    steps: Annotated[int, typer.Option(metavar="N", min=20, help="Optimizer steps.")] = 200,
    lowest: Annotated[float, typer.Option("--from", metavar="RATE", min=1e-12, max=100, help="First rate.")] = 1e-6,
    highest: Annotated[float, typer.Option("--to", metavar="RATE", min=1e-12, max=100, help="Last rate.")] = 10.0,
) -> None:
    """Try learning rates on the settings, from small to large, and suggest one. Keeps no model."""
    exit_on_sigterm()
    with project_folder() as workspace, interruptible("nothing was kept"):
        from commands.lr_find import find_rate

        find_rate(workspace, steps=steps, lowest=lowest, highest=highest)


@app.command(rich_help_panel=Panel.TRAINING)
def join(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="HOST:PORT of the first machine.", show_default="training.rendezvous"),
    ] = "",
) -> None:
    """Take part in the training of another machine, as one of its nodes. Writes nothing into the project."""
    exit_on_sigterm()
    with project_folder() as workspace, interruptible("its training goes on without this machine"):
        from tasks.nodes import join as join_node

        join_node(workspace, address, say=lambda text: echo(f"ratchet: {text}", err=True))


@app.command(rich_help_panel=Panel.TRAINING)
def verify_resume(
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Optimizer steps.", show_default="enough to cross the end of an epoch"),
    ] = None,
    kills: Annotated[int, typer.Option(metavar="N", min=1, help="How often the training is killed.")] = 5,
    processes: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            help="Processes of the attempts, such as 1,2,4.",
            show_default="training.processes",
        ),
    ] = "",
) -> None:
    """Prove that a killed and resumed training ends with identical weights.

    Trains twice, kills one of the two with SIGKILL, compares bit for bit and writes a certificate.
    """
    exit_on_sigterm()
    with project_folder() as workspace:
        from commands.verify_resume import verify_and_certify

        if not verify_and_certify(workspace, steps=steps, kills=kills, processes=processes):
            raise typer.Exit(1)


@app.command(rich_help_panel=Panel.USE)
def generate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder with model.json, or NAME/VERSION, NAME@ALIAS.")
    ],
    prompt: Annotated[list[str], typer.Option(metavar="TEXT", help="The beginning of the text. Repeatable.")],
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of each text at most.")] = 200,
    temperature: Annotated[float, typer.Option(metavar="NUMBER", help="0: always the most probable token.")] = 0.8,
    top_k: Annotated[int, typer.Option(metavar="N", help="Only so many of the most probable tokens; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="SHARE", help="Only the most probable tokens that together reach this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random numbers; every prompt begins with them.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text that ends it. Repeatable.")] = None,
    cache: Annotated[bool, typer.Option(help="Keep keys and values; without, the same text takes longer.")] = True,
) -> None:
    """Continue a text with a language model."""
    from commands.generate import generate as print_texts
    from ratchet.training.generate import Sampling

    sampling = Sampling(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=tuple(stop or ())
    )
    with interruptible("the text is not complete") as raise_again:
        print_texts(model, prompt, sampling, cached=cache, on_piece=raise_again)


@app.command(rich_help_panel=Panel.USE)
def serve(
    model: ServedVersion = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", min=1, max=65535, show_default="serving.port")] = None,
    offline_bundle: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write a new folder that serves without PyTorch, and end."),
    ] = None,
) -> None:
    """Answer requests with a registered model over HTTP until Ctrl-C. Follows its alias."""
    bundle = offline_bundle.resolve() if offline_bundle else None
    with project_folder() as workspace:
        if bundle is not None:
            from ratchet.serving.offline.bundle import write_bundle

            echo(write_bundle(workspace, model, bundle))
            return
        from ratchet.serving.process import serve as serve_here

        serve_here(workspace, model=model, port=port, say=echo)


@app.command(rich_help_panel=Panel.USE)
def predict(
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Images, tables, texts, or folders of them; also s3://...")
    ],
    model: ServedVersion = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV, Parquet or JSON Lines.", show_default="terminal")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder or s3://... of shards; a killed command continues.")
    ] = None,
    shard_rows: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rows of a shard of --output.", show_default="100000")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Forget what is in the folder of --output.")] = False,
    column: Annotated[str | None, typer.Option(metavar="NAME", help="Column with the texts of a text model.")] = None,
    interval: IntervalLevel = None,
    abstain: ErrorRate = None,
    novelty: Annotated[bool, typer.Option("--novelty", help="Add how unusual each row is: 0 to 1.")] = False,
) -> None:
    """Score files by a registered model. The column `refused` says why a row has no answer.

    Exit code 1: a file cannot be read, or every row is refused.
    """
    from tasks.score import Request, absolute

    if out is not None and output is not None:
        raise typer.BadParameter("found both; allowed: one of them", param_hint="--out, --output")
    exit_on_sigterm()
    inputs, written = absolute(paths, base=Path.cwd()), out.resolve() if out else None
    folder = absolute([output], base=Path.cwd())[0] if output else ""
    request = Request(inputs, folder, model, column, shard_rows, again, interval, abstain, novelty)
    with project_folder() as workspace:
        from commands import predict as scoring

        answered = (
            scoring.predict_shards(workspace, request) if folder else scoring.predict(workspace, request, written)
        )
    raise typer.Exit(int(not answered))


@app.command(rich_help_panel=Panel.USE)
def export(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="NAME/VERSION or NAME@ALIAS.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")],
    variant: Annotated[
        str, typer.Option(metavar="NAME", help="fp32, int8-static, int8-dynamic, torch-export, torchscript or model.")
    ] = "fp32",
) -> None:
    """Write the program of a registered version to a folder, for onnxruntime or PyTorch alone."""
    place = to.resolve()
    with project_folder() as workspace:
        from commands.export import export as write_program

        echo(write_program(workspace, version, variant=variant, to=place))


app.add_typer(new_project)
app.add_typer(settings_commands)
app.add_typer(search, name="search", rich_help_panel=Panel.TRAINING)
app.add_typer(data, name="data", rich_help_panel=Panel.TRAINING)
app.add_typer(keys, name="keys", rich_help_panel=Panel.USE)
app.add_typer(models)
app.add_typer(servers)
