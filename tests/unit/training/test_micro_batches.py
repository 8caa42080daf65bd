"""Micro-batches change memory and nothing else, also where memory runs out in the middle."""

import json

import numpy as np
import pytest
import torch

from hydragnn_hpo.campaign.outcome import EndedAttempt, read_outcome
from hydragnn_hpo.config.trial_config import HALVED, PEER_LOST
from hydragnn_hpo.files import write_json
from hydragnn_hpo.training import epoch
from hydragnn_hpo.training import stepper as stepping
from hydragnn_hpo.training.memory import CPU_IS_FULL
from hydragnn_hpo.training.micro_batches import MicroBatches, read_known_pieces

from .conftest import difference, epochs, go

pytestmark = pytest.mark.slow  # all together they take longer than most rooms

FULL = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory."),
    "cpu": RuntimeError(f"[enforce fail at alloc_cpu.cpp:119] . {CPU_IS_FULL}: you tried ..."),
    "python": MemoryError(),
}


@pytest.fixture
def full_at(monkeypatch):
    """Let memory run out in the given calls of a pass, counted from 0; tells which were made."""

    def arm(calls, error=FULL["gpu"], *, of="backward"):
        made = []

        def counted(work):
            def called(*arguments, **options):
                made.append(len(made))
                if made[-1] in calls:
                    raise error
                return work(*arguments, **options)

            return called

        if of == "backward":
            monkeypatch.setattr(torch.autograd, "backward", counted(torch.autograd.backward))
        else:
            monkeypatch.setattr(stepping, "head_sums", counted(stepping.head_sums))
        return made

    return arm


@pytest.mark.parametrize("pieces", [1, 2, 4, 9])
def test_pieces_hold_the_share_once_and_the_last_is_the_cheapest(train, pieces):
    trainer = train(micro_batches=pieces)
    rows = trainer.parts.order.steps(0)[0]
    cut = trainer.parts.micro.cut_share(rows)
    assert len(cut) == pieces
    assert sorted(np.concatenate(cut).tolist()) == sorted(rows.tolist())
    costs = [trainer.parts.feed.costs[piece].sum() for piece in cut]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] - costs[-1] <= trainer.parts.feed.costs[rows].max(), "as the longest first must"


@pytest.mark.parametrize("pieces", [4, 9])
def test_accumulation_never_changes_the_mathematics(train, pieces):
    """24 graphs in steps of 7: with 9 pieces some are empty in every step."""
    settings = {"ema": 0.9, "clip_norm": 0.3, "balance": "uncertainty", "epochs": 5}
    whole = train(micro_batches=1, **settings)
    cut = train(micro_batches=pieces, **settings)
    for trainer in (whole, cut):
        trainer.run(5, go)
    assert whole.progress.step == 20
    assert 0 < difference(whole, cut) < 1e-12
    assert cut.progress.best_val == pytest.approx(whole.progress.best_val, rel=1e-12)
    losses = [[r["loss"] for r in epochs(t)] for t in (whole, cut)]
    for one, other in zip(*losses, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize(
    ("error", "of", "depth"),
    [("cpu", "forward", 0), ("python", "backward", 0), ("gpu", "backward", 2)],
)
def test_a_step_that_does_not_fit_is_taken_again_in_more_pieces(
    train, full_at, monkeypatch, error, of, depth
):
    """Also where batches were made ahead for fewer pieces: they are cut again."""
    undisturbed = train()
    undisturbed.run(2, go)
    monkeypatch.setattr(epoch, "prefetch_depth", lambda _: depth)
    trainer = train()
    made = full_at(
        {2, 4}, FULL[error], of=of
    )  # in the third step, and in the second piece of it again
    trainer.run(2, go)
    assert trainer.parts.micro.pieces == 4
    assert len(made) == 2 + 1 + 2 + 6 * 4
    assert trainer.progress.step == 8
    assert 0 < difference(trainer, undisturbed) < 1e-12
    changes = [r["pieces"] for r in trainer.records if r["record"] == "memory"]
    assert changes == [1, 2, 4]


def test_no_room_to_make_batches_ahead_waits_for_their_turn(train, monkeypatch):
    undisturbed = train()
    undisturbed.run(1, go)
    trainer = train()
    made = MicroBatches.make_batches

    def full_once(micro, indices):
        monkeypatch.setattr(MicroBatches, "make_batches", made)
        raise MemoryError

    monkeypatch.setattr(MicroBatches, "make_batches", full_once)
    trainer.run(1, go)
    assert difference(trainer, undisturbed) == 0


def test_other_errors_are_no_lack_of_memory(train, full_at):
    trainer = train()
    full_at({1}, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        trainer.run(1, go)
    assert trainer.parts.micro.pieces == 1


def test_a_graph_that_is_too_large_alone_ends_the_trial_with_its_size(train, full_at, columns):
    trainer = train()
    full_at(range(1000))
    with pytest.raises(MemoryError) as exc_info:
        trainer.run(1, go)
    first = trainer.parts.order.steps(0)[0]
    assert trainer.parts.micro.pieces == 4, "of 7 graphs in 4 pieces the largest is alone"
    costliest = first[np.argmax(trainer.parts.feed.costs[first])]
    nodes = columns.num_nodes()[costliest]
    edges = trainer.parts.feed.batch_on_host([costliest]).edge_index.shape[1]
    assert str(exc_info.value).startswith(
        f"structure {costliest} of {nodes} atoms and {edges} edges does not fit into the memory "
        "alone: take a smaller model"
    )
    assert str(exc_info.value).endswith("(CUDA out of memory.)")


def test_no_memory_for_the_update_is_reported_as_that(train, monkeypatch):
    trainer = train()

    def full(*_):
        raise FULL["gpu"]

    monkeypatch.setattr(trainer.parts.state.optimizer, "step", full)
    with pytest.raises(MemoryError, match="no memory for the update of the weights, .* shard"):
        trainer.run(1, go)
    assert trainer.parts.micro.pieces == 1


def test_what_was_found_is_kept_for_the_next_attempt(train, full_at, tmp_path):
    trainer = train()
    full_at({0, 1})
    trainer.run(1, go, tmp_path)
    assert json.loads((tmp_path / "micro.json").read_text()) == {"pieces": 4, "shares": 1}
    again = train()
    assert again.resume(tmp_path)
    again.run(2, go, tmp_path)
    assert again.parts.micro.pieces == 4
    assert [r["pieces"] for r in again.records if r["record"] == "memory"] == [4]


@pytest.mark.parametrize(("shares", "pieces"), [(1, 8), (2, 4), (3, 3), (4, 2), (8, 1), (100, 1)])
def test_pieces_at_another_width_keep_their_size(tmp_path, shares, pieces):
    """4 pieces of each of 2 shares are 8 eighths of a step."""
    assert read_known_pieces(tmp_path, shares) == 1
    write_json(tmp_path / "micro.json", {"pieces": 4, "shares": 2})
    assert read_known_pieces(tmp_path, shares) == pieces


@pytest.mark.parametrize("restarts", [0, 3])
def test_the_campaign_takes_it_as_resized(tmp_path, restarts):
    codes = (PEER_LOST, HALVED)
    ended = read_outcome(EndedAttempt(tmp_path, codes, restarts=restarts, max_restarts=3))
    assert ended == {"outcome": "interrupted", "reason": "resized"}
