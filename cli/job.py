"""`graphcache job`: what to submit to Kubernetes or Slurm."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cli.build import Request, read_request
from cli.options import PATH, catalog_options, cli_command, json_option, only_option
from cli.render import emit_json
from graphcache.catalog import CatalogOptions
from graphcache.errors import UsageError
from graphcache.jobs.request import JobRequest
from graphcache.location import cache_dir
from graphcache.process.own_command import option_words
from graphcache.store.local import LocalStore

ENGINES = ("kubernetes", "slurm")
MOST_SHARDS = 1000
HOUR_SECS = 3600

HEAD = """\
# What graphcache job printed: submit the parts one after another.
#   kubectl apply -f FILE -l app.kubernetes.io/component=preflight
#   kubectl wait --for=condition=complete job/{name}-preflight      # an image that cannot be pulled is seen here
#   kubectl apply -f FILE -l app.kubernetes.io/component=build
#   kubectl wait --for=condition=complete --timeout=-1s job/{name}-build
"""
TRAIN_HEAD = "#   kubectl apply -f FILE -l app.kubernetes.io/component=train\n"


@cli_command(
    "job",
    examples=(
        "graphcache job kubernetes --shapes-from cache_manifests/llama-3.1-8b.json --image registry.example/gc:1"
        " --remote s3://bucket/graphcache --secret s3-credentials",
        "graphcache job slurm --shapes-from cache_manifests/llama-3.1-8b.json --volume /shared/graphcache --shards 16",
    ),
)
@click.argument("engine", type=click.Choice(ENGINES))
@click.option("--shapes-from", "source", metavar="MODEL", type=PATH, required=True, help="As build takes it.")
@only_option
@click.option("--fusion", type=int, help="As build takes it.")
@catalog_options
@click.option("--image", help="Kubernetes: the image that has graphcache and MODEL in it.")
@click.option("--shards", type=click.IntRange(1, MOST_SHARDS), default=8, show_default=True, help="Jobs, at most.")
@click.option("--remote", metavar="URL", help="The remote that jobs push to.")
@click.option("--volume", metavar="NAME", help="Kubernetes: claim of a shared volume. Slurm: a shared folder.")
@click.option("--secret", metavar="NAME", help="Kubernetes: the secret that has the remote's credentials as variables.")
@click.option("--namespace", metavar="NAME", help="Kubernetes: where the jobs are made.")
@click.option("--name", default="graphcache", show_default=True, help="What the jobs' names begin with.")
@click.option("--deadline", type=click.IntRange(1, 1000), default=12, show_default=True, help="Hours for the builds.")
@click.option("--train", metavar="WORDS", default="", help="Kubernetes: also a Job of `python -m trainer run WORDS`.")
@click.option("--cards", type=click.IntRange(1, 64), default=1, show_default=True, help="Cards of that Job.")
@json_option
def command(engine: str, source: Path, only: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print what to submit to Kubernetes or Slurm to fill the cache.

    ENGINE is kubernetes or slurm. Each job compiles a shard of the model's graphs, without a card, and pushes to a
    remote or shares a folder. Nothing is submitted. MODEL is read here for the number of graphs and their recorded
    memory, and has to be at the same path in the image or on the nodes; a manifest is enough.
    """
    _check(engine, options)
    request = read_request(source, only, None, LocalStore(cache_dir(None)), options)
    job = _job(request, source, only, options)
    if engine == "slurm":
        from graphcache.jobs.slurm import script

        text = script(job)
        emit_json({"engine": engine, "script": text}) if as_json else print(text, end="")
        return
    from graphcache.jobs.kubernetes import objects

    made = objects(
        job,
        secret=options["secret"],
        namespace=options["namespace"],
        train=shlex.split(options["train"]),
        cards=options["cards"],
    )
    if as_json:
        emit_json({"engine": engine, "objects": made})
    else:
        _print_yaml(made, job.name, train=bool(options["train"]))


def _check(engine: str, options: Mapping[str, Any]) -> None:
    if (options["remote"] is None) == (options["volume"] is None):
        raise UsageError("jobs need one place to leave what they build", hint="give --remote URL or --volume NAME")
    if options["remote"] is not None:
        from graphcache.remote.url import parse

        url = parse(options["remote"])
        if not url.writable or url.scheme == "file":
            raise UsageError(f"jobs cannot push to {url}", hint="s3:// or gs://; a shared folder is --volume")
    if engine == "kubernetes" and not options["image"]:
        raise UsageError("Kubernetes needs an --image", hint="docs/fleet.md says how to build one from the Dockerfile")
    names = {name: options[name] for name in ("name", "secret", "namespace") if options[name]}
    if engine == "kubernetes" and options["volume"]:
        names["volume"] = options["volume"]
    for name, value in names.items():
        # RFC 1123 labels, with room for a part's name and a pod's digits.
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", value):
            raise UsageError(f"--{name} {value!r} is no name of Kubernetes: lower-case letters, digits and -, up to 40")


def _job(request: Request, source: Path, only: tuple[str, ...], options: Mapping[str, Any]) -> JobRequest:
    graphs = request.listing.graphs
    words = ["graphcache", "build", "--shapes-from", str(source)]
    words += ["--only", ",".join(only)] if only else []
    asked = {name: options[name] for name in CatalogOptions().as_json()}
    words += option_words({**asked, **options["own"], "fusion": request.fusion})
    peaks = [
        recorded.compiled.cost.peak_rss_bytes
        for manifest in request.manifests
        for recorded in manifest.graphs
        if recorded.compiled is not None
    ]
    return JobRequest(
        name=options["name"],
        image=options["image"] or "",
        build=words,
        graphs=len(graphs),
        shards=min(options["shards"], len(graphs)),
        remote=options["remote"],
        volume=options["volume"],
        peak_bytes=max(peaks, default=None),
        deadline_secs=options["deadline"] * HOUR_SECS,
    )


def _print_yaml(objects: list[dict[str, Any]], name: str, *, train: bool) -> None:
    import yaml

    print(HEAD.format(name=name) + (TRAIN_HEAD if train else ""), end="")
    for each in objects:
        # Through JSON, so that labels that two objects share are written twice: few people like to read YAML's anchors.
        print("---")
        print(yaml.safe_dump(json.loads(json.dumps(each)), sort_keys=False), end="")
