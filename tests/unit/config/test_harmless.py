"""What values of a profile may hold, and what is filled in."""

import pytest
from pydantic import TypeAdapter, ValidationError

from hydragnn_hpo.config.filling import filled
from hydragnn_hpo.config.harmless import (
    Directive,
    Interface,
    Module,
    Option,
    Place,
    Plain,
    Title,
    Variable,
)
from hydragnn_hpo.errors import ConfigError

GOOD = [
    (Variable, "FI_CXI_RDZV_PROTO"),
    (Plain, "hsn0,hsn1 with 'quotes' and ; signs"),
    (Place, "/mnt/bb/$USER"),
    (Place, "${TMPDIR}/hpo"),
    (Interface, "hsn0"),
    (Interface, "enp1s0f0.4093"),
    (Module, "PrgEnv-gnu/8.7.0"),
    (Module, "gcc/13.2.0+cuda"),
    (Option, "--gpus-per-node=8"),
    (Option, "-c7"),
    (Option, "--cpu-bind=list:2-4:10-12"),
    (Directive, "--partition=batch"),
    (Directive, "-C nvme"),
    (Directive, "-l filesystems=home:flare"),
    (Title, "generic-slurm"),
]


@pytest.mark.parametrize(("kind", "text"), GOOD)
def test_what_sites_really_write_is_taken(kind, text):
    assert TypeAdapter(kind).validate_python(text) == text


HOSTILE = ("a\nb", "$(touch x)", "`touch x`", "${A:-$(id)}", "a\x1b[31m", "a\u2028b", "a\x00b")


@pytest.mark.parametrize(
    "kind", [Variable, Plain, Place, Interface, Module, Option, Directive, Title]
)
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("start", ["", "--x=", "/x/"])
def test_what_a_shell_would_take_for_more_is_refused(kind, text, start):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(start + text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Option, "rm"),
        (Option, "--a b"),
        (Option, ""),
        (Option, "--"),
        (Directive, "--comment='x'"),
        (Directive, '--comment="x"'),
        (Directive, "--x;y"),
        (Directive, "--x#y"),
        (Module, "--help"),
        (Module, "a b"),
        (Module, "../a;b"),
        (Interface, "-x"),
        (Interface, "sixteen-letters-"),
        (Place, "relative/path"),
        (Place, "~/scratch"),
        (Title, "../frontier"),
        (Title, "a b"),
        (Variable, "2A"),
        (Variable, "A-B"),
        (Variable, "A=B"),
    ],
)
def test_what_is_no_such_thing_is_refused(kind, text):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)


def test_variables_of_a_path_are_filled_in():
    known = {"USER": "ada", "JOB": "12"}
    assert filled("/mnt/bb/$USER", known) == "/mnt/bb/ada"
    assert filled("${USER}/$JOB-x", {"USER": "/home/ada", "JOB": "12"}) == "/home/ada/12-x"
    assert filled("/tmp", {}) == "/tmp"


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        ("/x/$USER", {}, "USER is not set"),
        ("/x/$USER", {"USER": ""}, "USER is not set"),
        ("/x/$USER", {"USER": "a\nb"}, "no part of a path"),
        ("/x/$USER", {"USER": "../../etc"}, "no part of a path"),
        ("/x/$(id)", {"id": "1"}, "only variables"),
        ("/x/`id`", {}, "only variables"),
        ("/x/$1", {"1": "x"}, "only variables"),
        ("/x/${A-b}", {"A": "x"}, "only variables"),
        ("x", {}, "no absolute path"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(text, environment, says):
    with pytest.raises(ConfigError, match=says):
        filled(text, environment)


def test_what_was_filled_in_is_not_filled_in_again():
    assert filled("/x/$A", {"A": "$B", "B": "secret"}) == "/x/$B"
