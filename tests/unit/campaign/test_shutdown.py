"""A wish to stop: set by the first signal, urgent with the second, gone after the block."""

import os
import signal

import pytest

from hydragnn_hpo.campaign.shutdown import ShutdownRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_sets_the_wish_and_the_second_does_not_wait(number):
    before = signal.getsignal(number)
    pause = ShutdownRequest()
    with pause.handle_signals():
        assert not pause.wanted
        os.kill(os.getpid(), number)
        assert pause.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) is before


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
