"""A wish to stop: set by the first signal, urgent with the second, gone after the block."""

import os
import signal

import pytest

from hydragnn_hpo.campaign.shutdown import ShutdownRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_sets_the_wish(number):
    pause = ShutdownRequest()
    with pause.handle_signals():
        assert not pause.wanted
        os.kill(os.getpid(), number)
        assert pause.wanted


def test_the_second_signal_does_not_wait():
    pause = ShutdownRequest()
    with pause.handle_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_scheduler_says_that_the_end_is_near_and_may_say_it_again():
    pause = ShutdownRequest()
    with pause.handle_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (pause.draining, pause.wanted) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert pause.wanted, "a person may still wish"


def test_sigterm_in_a_batch_job_is_the_end_of_its_allocation_however_often_it_comes():
    pause = ShutdownRequest(sigterm_drains=True)
    with pause.handle_signals():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (pause.draining, pause.wanted) == (True, False)
        os.kill(os.getpid(), signal.SIGINT)
        assert pause.wanted


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ShutdownRequest().handle_signals():
        inside = signal.getsignal(signal.SIGINT)
    assert inside not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
